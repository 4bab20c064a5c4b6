"""Secrets go through the hub in many ways and are found in none of its files and in nobody else's answers."""

import base64
import json
import random
import string
from typing import Any

from tests.live.daemon_process import Daemon

LEAKY = '''
class Anything(Params):
    password: str = Field("", description="A secret by its name.")
    api_key: str = Field("", description="A secret by its name.")
    text: str = Field("", max_length=5000, description="Any text.")
    options: dict[str, JsonValue] = Field({}, description="Anything.")

plugin.announces("leaky:told", "Everything that was sent.")

class Told(Result):
    text: str

@plugin.handles("leaky:work")
async def work(ctx: Context, params: Anything) -> Told:
    """Log everything, tell everyone, and give it back."""
    ctx.log.info("working", text=params.text, password=params.password, options=params.options)
    ctx.log.debug(f"in words: {params.text}")
    return Told(text=params.text)

@plugin.handles("leaky:read", reads=True)
async def read(ctx: Context, params: Anything) -> Told:
    """The same without an intent."""
    return Told(text=params.text)

@plugin.handles("leaky:refuse")
async def refuse(ctx: Context, params: Anything) -> Done:
    """Say no, with everything."""
    raise NotFound(f"no such thing: {params.text}", hint=f"try {params.text}")

@plugin.handles("leaky:crash")
async def crash(ctx: Context, params: Anything) -> Done:
    """Break with everything in hand."""
    local = params.text
    raise ValueError(f"cannot use {local}")
'''


def _canaries() -> dict[str, tuple[str, str]]:
    """Kind -> (the secret, a text with it in it). Made anew, of the shapes that real ones have."""
    chance = random.SystemRandom()

    def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
        return "".join(chance.choice(alphabet) for _ in range(count))

    upper = string.ascii_uppercase + string.digits
    jwt = ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")
        for part in ('{"alg":"HS256","typ":"JWT"}', f'{{"sub":"{letters(12)}"}}', letters(32))
    )
    pem = "\n".join(letters(64) for _ in range(3))
    plain = {
        "our token": "ksi_" + letters(43),
        "our session": "ksi_s_" + letters(43),
        "bridge token": "epi_" + letters(32),
        "aws id": "AKIA" + letters(16, upper),
        "aws temporary": "ASIA" + letters(16, upper),
        "github": "ghp_" + letters(36),
        "github fine": "github_pat_" + letters(60),
        "gitlab": "glpat-" + letters(20),
        "openai": "sk-" + letters(40),
        "stripe": "sk_live_" + letters(24),
        "slack": "xoxb-" + letters(40),
        "google": "AIza" + letters(35),
        "npm": "npm_" + letters(36),
        "hugging face": "hf_" + letters(34),
        "jwt": jwt,
    }
    found = {kind: (secret, f"here it is: {secret} and more") for kind, secret in plain.items()}
    found["pem"] = (pem.splitlines()[1], f"-----BEGIN RSA PRIVATE KEY-----\n{pem}\n-----END RSA PRIVATE KEY-----")
    for kind, pattern in {
        "url": "https://user:{}@example.org/x",
        "bearer": "Authorization: Bearer {}",
        "assigned": "password={} host=x",
        "json": '{{"api_key": "{}"}}',
        "option": "run --token {} now",
        "cookie": "Cookie: session={}",
    }.items():
        secret = letters(24)
        found[kind] = (secret, pattern.format(secret))
    return found


def test_twenty_secrets_go_through_and_none_is_kept(daemon: Daemon) -> None:
    """S05"""
    daemon.plugin("leaky", LEAKY)
    daemon.start(KSI_LOG_LEVEL="debug", KSI_EXPOSE_ERROR_DETAILS="true")
    canaries = _canaries()
    assert len(canaries) >= 20
    token = daemon.add_agent("alice")
    looks = []
    with daemon.connect() as connection:
        for number, (secret, text) in enumerate(canaries.values()):
            data = {
                "text": text,
                "password": secret,
                "api_key": secret,
                "options": {"client_secret": secret, "deep": [{"token": secret}], "said": text},
            }
            for event in ("leaky:work", "leaky:read", "leaky:refuse"):
                connection.send(event, data, token=token)
                connection.send(event, data)
            if number < 4:  # the fifth would only meet the breaker
                connection.send("leaky:crash", data, token=token)
            connection.send("leaky:work", {**data, "unknown": text}, token=token)  # invalid
            connection.send("token:create", {"agent_id": text[:60]}, token=token)  # denied
            connection.send("leaky:work", data, token=secret)  # nobody
            known = secret if text.startswith("here it is") else text  # what has no shape is known by what is around it
            connection.send(f"leaky:{known}", {known: known}, token=token)
            connection.send("leaky:work", data, **{"as": known[:60]})
            connection.send("agent:register", {"agent_id": known[:60] + "!"})
            connection.send("permission:explain", {"agent_id": "alice", "event": text[:90]})
        for event, asked in (
            ("monitor:get_events", {"limit": 1000}), ("audit:query", {"limit": 1000}), ("audit:stats", {}),
            ("system:status", {}), ("system:health", {}), ("agent:list", {}), ("token:list", {}), ("config:show", {}),
        ):  # fmt: skip
            looks.append((event, json.dumps(connection.call(event, asked))))
        connection.call("audit:export", {"name": "all.jsonl"})
        connection.call("audit:export", {"name": "all.csv", "format": "csv"})
    assert daemon.stop() == 0
    places = [
        (str(path.relative_to(daemon.folder)), path.read_bytes()) for path in daemon.var.rglob("*") if path.is_file()
    ]
    places += [(name, (daemon.folder / name).read_bytes()) for name in ("stdout", "stderr")]
    places += [(f"answer of {event}", text.encode()) for event, text in looks]
    leaks = sorted(
        {(place, kind) for place, raw in places for kind, (secret, _) in canaries.items() if secret.encode() in raw}
    )
    assert leaks == []
    assert any(b"[redacted]" in raw for _, raw in places), "they did come by"


def test_secrets_beside_their_names_and_in_identifiers_are_not_kept(daemon: Daemon) -> None:
    """S05: a state key that names a secret, lists of name and value, a token as correlation id."""
    daemon.plugin("leaky", LEAKY)
    daemon.start(KSI_LOG_LEVEL="debug")
    token = daemon.add_agent("alice")
    secret = "".join(random.SystemRandom().choice(string.ascii_letters) for _ in range(24))
    shapes: list[Any] = [
        {"name": "password", "value": secret},
        ["Authorization", f"Basic {secret}"],
        ["--password", secret],
        {"pw": secret, "passcode": secret},
        json.dumps({"key": "db_password", "value": secret}),
    ]
    with daemon.connect() as connection:
        connection.send("state:set", {"key": "db_password", "value": secret})
        for shape in shapes:
            connection.send("leaky:work", {"text": "x", "options": {"shape": shape}})
            connection.send("message:publish", {"event": "test:shape", "data": {"shape": shape}})
        connection.send("system:echo", {"text": "hi"}, correlation_id=token)
        connection.send("leaky:crash", {"text": "hi"}, correlation_id=token)
    assert daemon.stop() == 0
    folders = [*(daemon.var / "log").iterdir(), *(daemon.var / "db").glob("audit.db*")]
    places = [(path.name, path.read_bytes()) for path in folders]
    places += [(name, (daemon.folder / name).read_bytes()) for name in ("stdout", "stderr")]
    assert [name for name, raw in places if secret.encode() in raw or token.encode() in raw] == []
    assert len(daemon.audit_rows("event = 'leaky:work'")) >= len(shapes), "they did come by"

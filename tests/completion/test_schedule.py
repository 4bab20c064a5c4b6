"""Which completion begins next: in order within a conversation, in turns between agents, never too many."""

from ksi_daemon.completion.schedule import Schedule, Waiting


def schedule(most: int = 100, closed: frozenset[str] = frozenset()) -> Schedule:
    return Schedule(lambda: most, lambda agent_id: agent_id not in closed)


def waiting(number: int, agent: str = "bot", conversation: str | None = None, not_before: float = 0.0) -> Waiting:
    return Waiting(f"{number:03}", agent, conversation or f"talk{number}", not_before)


def begun(schedule: Schedule, now: float = 1.0) -> list[str]:
    found = []
    while (chosen := schedule.next(now)) is not None:
        found.append(chosen.completion_id)
    return found


def test_one_conversation_is_served_in_order_one_at_a_time() -> None:
    line = schedule()
    for number in range(3):
        line.add(waiting(number, conversation="talk"))
    assert [line.place(f"{number:03}") for number in range(3)] == [0, 1, 2]
    for number in range(3):
        assert begun(line) == [f"{number:03}"]
        line.end(f"{number:03}")


def test_conversations_of_two_agents_with_one_id_are_two() -> None:
    line = schedule()
    line.add(waiting(1, "one", "talk"))
    line.add(waiting(2, "two", "talk"))
    assert begun(line) == ["001", "002"]


def test_no_more_than_the_limit_are_under_way() -> None:
    line = schedule(most=2)
    for number in range(5):
        line.add(waiting(number))
    assert begun(line) == ["000", "001"]
    line.end("000")
    assert begun(line) == ["002"]
    assert (line.waiting, line.under_way) == (2, 2)


def test_an_agent_with_many_waits_behind_one_with_few() -> None:
    """The one that has least under way goes first, then the one whose turn was longest ago."""
    line = schedule(most=2)
    for number in range(10):
        line.add(waiting(number, "busy"))
    assert begun(line) == ["000", "001"]
    line.add(waiting(50, "modest"))
    line.end("000")
    assert begun(line) == ["050"]
    line.add(waiting(51, "modest"))
    line.end("001")
    assert begun(line) == ["002"]


def test_one_that_is_tried_again_keeps_its_place_and_its_conversation_waits() -> None:
    line = schedule()
    for number in range(2):
        line.add(waiting(number, conversation="talk"))
    assert begun(line) == ["000"]
    line.put_back(waiting(0, conversation="talk", not_before=5.0))
    assert begun(line, now=4.0) == []
    assert line.next_retry(4.0) == 5.0
    assert begun(line, now=5.0) == ["000"]


def test_a_frozen_agent_does_not_hold_up_others_and_what_is_removed_is_gone() -> None:
    line = schedule(closed=frozenset({"frozen"}))
    line.add(waiting(1, "frozen"))
    line.add(waiting(2, "free"))
    assert begun(line) == ["002"]
    assert line.remove("001")
    assert not line.remove("001")
    assert line.place("001") is None
    assert line.all_of({"free", "frozen"}) == ["002"]

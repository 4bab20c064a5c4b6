"""`python -m ksi_client` is the `ksi` command, for when the script is not on the PATH."""

import sys

from ksi_client.command import main

sys.exit(main())

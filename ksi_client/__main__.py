"""`python -m ksi_client` is the `ksi` command, for places where the script is not on the path."""

import sys

from ksi_client.command import main

sys.exit(main())

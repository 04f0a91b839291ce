"""A process that sends one call by two-phase commit and dies by SIGKILL where it is told to: prepared, recorded or committed.

python two_phase_victim.py POINT RECORD   with {"connection", "table"} as JSON on stdin
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from sinks import LOOPBACK, call, members

from tidings.channels import open_channel
from tidings.shapes import NetworkRules, Subscriber


def main(point: str, record: Path) -> None:
    said = json.load(sys.stdin)
    place = {"table": said["table"], "key": "event_id = member.event_id", "columns": "body = envelope"}
    own = {"manifest": "postgresql_two_phase", "name": "someone", "role": "service", "region": "US", "vars": place}
    subscriber = Subscriber.model_validate({**own, "connection": "file:server.key"})
    channel = open_channel(subscriber, {"file:server.key": said["connection"]}, NetworkRules(allow=LOOPBACK))
    outcomes = channel.send(call(*members(1, 3), number=7))
    if point == "prepared":
        os.kill(os.getpid(), signal.SIGKILL)
    record.write_text(json.dumps([outcome.reference for outcome in outcomes]))
    if point == "recorded":
        os.kill(os.getpid(), signal.SIGKILL)
    known = [replace(one, reference=o.reference) for one, o in zip(members(1, 3), outcomes, strict=True)]
    channel.probe(call(*known, number=8))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

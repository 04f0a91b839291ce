"""Every rig there is. A channel without one has not been through the suite; tests/house looks at this list."""

from __future__ import annotations

import rigs_brokers
import rigs_clouds
import rigs_http
import rigs_logs
import rigs_people
import rigs_tables
from sinks import Rig

RIGS: list[type[Rig]] = [
    *rigs_brokers.RIGS,
    *rigs_logs.RIGS,
    *rigs_clouds.RIGS,
    *rigs_tables.RIGS,
    *rigs_http.RIGS,
    *rigs_people.RIGS,
]

# Event Hubs is Kafka's code on Kafka's server, and Pulsar's is large to fetch and slow to start.
LONG: tuple[type[Rig], ...] = (rigs_logs.EventHubsRig, rigs_logs.PulsarRig)

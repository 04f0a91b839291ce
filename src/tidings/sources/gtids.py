"""Global transaction ids: what was read, in words that every server of a replication knows. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Gtids:
    """What was read, by GTID: per domain the last one (MariaDB), or a set (MySQL)."""

    text: str
    mariadb: bool

    def known(self, gtid: str) -> bool:
        if self.mariadb:
            return sequence(gtid) <= sequence(self._last().get(gtid.split("-")[0], "0-0-0"))
        from pymysqlreplication.gtid import Gtid, GtidSet

        return Gtid(gtid) in GtidSet(self.text)

    def add(self, gtid: str) -> None:
        if self.mariadb:
            self.text = ",".join((self._last() | {gtid.split("-")[0]: gtid}).values())
            return
        from pymysqlreplication.gtid import Gtid, GtidSet

        self.text = str(GtidSet(self.text) + Gtid(gtid))

    def covers(self, other: str) -> bool:
        if self.mariadb:
            return all(self.known(gtid) for gtid in Gtids(other, True)._last().values())
        from pymysqlreplication.gtid import GtidSet

        return all(any(one in held for held in GtidSet(self.text).gtids) for one in GtidSet(other).gtids)

    def _last(self) -> dict[str, str]:
        return {gtid.split("-")[0]: gtid for gtid in filter(None, self.text.split(","))}


def sequence(gtid: str) -> int:
    """The number of a MariaDB GTID in its domain."""
    return int(gtid.rsplit("-", 1)[1])

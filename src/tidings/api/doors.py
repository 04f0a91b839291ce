"""How often the public form may be used: by one address, and by all together. What is over is told when to come back."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidings.api.rates import Rates, network_of


@dataclass
class Doors:
    each: Rates = field(default_factory=lambda: Rates(0.2, 10))  # requests of one address
    every: Rates = field(default_factory=lambda: Rates(20, 200))  # requests of everybody
    looks: Rates = field(default_factory=lambda: Rates(5, 60))  # looks and codes of one address

    def send(self, who: str) -> float:
        """0, or the seconds until this address may send a request."""
        return self.each.wait(network_of(who)) or self.every.wait("")

    def look(self, who: str) -> float:
        return self.looks.wait(network_of(who))

package tidings.gate

import rego.v1

revision := "2026-11"

# What is not known is null. Each rule says what it does then: here, as our own rules do, it names the facts that are missing.
unknown(told) := [name | some name; told[name] == null]

findings contains {
	"rule": "a-no-agreement", "anchor": "privacy", "outcome": "deny", "statutes": ["eu-gdpr-processor"],
	"reason": "there is no data processing agreement with this recipient",
	"missing": unknown({"personal": input.facts.personal, "consent_state": input.facts.duty}),
} if {
	input.facts.personal in {true, null}
	input.facts.duty in {"none", null}
	input.recipient.dpa == false
}

findings contains {
	"rule": "b-where-do-they-live", "anchor": "channel", "outcome": "defer",
	"reason": "nobody knows which country's rules on marketing hold",
	"missing": unknown({"consent_state": input.facts.duty}),
} if {
	"marketing" in input.recipient.purposes
	input.facts.jurisdiction == null
	input.facts.duty in {"none", null}
}

findings contains {
	"rule": "c-withdrawn", "anchor": "channel", "outcome": "deny", "statutes": ["eu-gdpr-consent-withdraw"],
	"reason": "the person has withdrawn the consent to marketing e-mail",
	"missing": unknown({
		"consent_state": input.facts.duty, "jurisdiction": input.facts.regime, "consent_email": input.facts.consent_email,
	}),
} if {
	"marketing" in input.recipient.purposes
	input.facts.duty in {"none", null}
	input.facts.regime in {"eu", null}
	input.facts.consent_email in {"withdrawn", null}
}

findings contains {
	"rule": "d-health-stays", "anchor": "vertical", "redact": ["kind:phi", "first_name"], "tags": ["hipaa.minimum"],
} if {
	input.facts.phi == true
	input.recipient.baa == false
}

findings contains {
	"rule": "e-erase-in-time", "anchor": "privacy", "statutes": ["eu-gdpr-erase"],
	"deadline": {"statute": "eu-gdpr-erase"}, "retention": "eu-gdpr-erase",
	"missing": unknown({"consent_state": input.facts.duty, "jurisdiction": input.facts.regime}),
} if {
	input.facts.duty in {"erasure", null}
	input.facts.regime in {"eu", null}
}

findings contains {
	"rule": "f-opt-out-first", "anchor": "channel", "outcome": "allow", "reason": "an opt-out reaches everybody",
	"semantics": "at-least-once", "priority": 0, "deadline": {"days": 10, "business": true, "from": "event"},
	"ack": "A2", "reach": "everyone", "missing": unknown({"consent_state": input.facts.duty}),
} if {
	input.facts.duty in {"opt_out", null}
}

findings contains {
	"rule": "g-not-yet-public", "anchor": "governance", "outcome": "review",
	"reason": "somebody has to look: this may move the share price",
} if {
	input.facts.material == true
	input.recipient.role in {"ads", "agent"}
}

findings contains {"rule": "h-reads-a-model", "anchor": "governance", "tags": ["ai-act.50", "model.keeps"]} if {
	input.recipient.llm == true
	input.recipient.zero_retention == false
}

findings contains {"rule": "h-reads-a-model", "anchor": "governance", "outcome": "pass"} if {
	input.recipient.llm == true
	input.recipient.zero_retention == true
}

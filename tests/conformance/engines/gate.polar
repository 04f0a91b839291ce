# What is not known is nil. Each rule has a twin for every fact that can be missing.
finding(facts, to, found) if
  found = {rule: "a-no-agreement", anchor: "privacy", outcome: "deny", statutes: ["eu-gdpr-processor"], missing: missing,
           reason: "there is no data processing agreement with this recipient"} and
  to.dpa = false and facts.personal in [true, nil] and facts.duty in ["none", nil] and
  gaps([["personal", facts.personal], ["consent_state", facts.duty]], missing);

finding(facts, to, found) if
  found = {rule: "b-where-do-they-live", anchor: "channel", outcome: "defer", missing: missing,
           reason: "nobody knows which country's rules on marketing hold"} and
  "marketing" in to.purposes and facts.jurisdiction = nil and facts.duty in ["none", nil] and
  gaps([["consent_state", facts.duty]], missing);

finding(facts, to, found) if
  found = {rule: "c-withdrawn", anchor: "channel", outcome: "deny", statutes: ["eu-gdpr-consent-withdraw"],
           missing: missing, reason: "the person has withdrawn the consent to marketing e-mail"} and
  "marketing" in to.purposes and facts.duty in ["none", nil] and facts.regime in ["eu", nil] and
  facts.consent_email in ["withdrawn", nil] and
  gaps([["consent_state", facts.duty], ["jurisdiction", facts.regime], ["consent_email", facts.consent_email]], missing);

finding(facts, to, {rule: "d-health-stays", anchor: "vertical", redact: ["kind:phi", "first_name"], tags: ["hipaa.minimum"]}) if
  facts.phi = true and to.baa = false;

finding(facts, _to, found) if
  found = {rule: "e-erase-in-time", anchor: "privacy", statutes: ["eu-gdpr-erase"], missing: missing,
           deadline: {statute: "eu-gdpr-erase"}, retention: "eu-gdpr-erase"} and
  facts.duty in ["erasure", nil] and facts.regime in ["eu", nil] and
  gaps([["consent_state", facts.duty], ["jurisdiction", facts.regime]], missing);

finding(facts, _to, found) if
  found = {rule: "f-opt-out-first", anchor: "channel", outcome: "allow", reason: "an opt-out reaches everybody",
           semantics: "at-least-once", priority: 0, deadline: {days: 10, business: true, from: "event"}, ack: "A2",
           reach: "everyone", missing: missing} and
  facts.duty in ["opt_out", nil] and gaps([["consent_state", facts.duty]], missing);

finding(facts, to, {rule: "g-not-yet-public", anchor: "governance", outcome: "review",
                    reason: "somebody has to look: this may move the share price"}) if
  facts.material = true and to.role in ["ads", "agent"];

finding(_facts, to, {rule: "h-reads-a-model", anchor: "governance", tags: ["ai-act.50", "model.keeps"]}) if
  to.llm = true and to.zero_retention = false;
finding(_facts, to, {rule: "h-reads-a-model", anchor: "governance", outcome: "pass"}) if
  to.llm = true and to.zero_retention = true;

# gaps(pairs of a name and a value, the names whose value is nil)
gaps([], []);
gaps([[name, value], *rest], [name, *more]) if value = nil and cut and gaps(rest, more);
gaps([[_name, _value], *rest], more) if gaps(rest, more);

"""READ: linear readers, attribution, the logit lens. Pure functions of a Ledger; no model is run here."""

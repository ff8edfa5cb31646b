"""Certificates of hooks are renewed in steps, in which whoever serves or trusts either of two is understood."""

from __future__ import annotations

from moorage.machines.certificates import ANNOUNCED, WITHDRAWN, Keys, advance, from_secret, issue, serves, to_secret

NAMES, DAY = ["127.0.0.1"], 86400.0
LIFETIME = 90 * DAY


def test_a_certificate_is_announced_before_it_is_served_and_the_ca_before_stays_for_a_while() -> None:
    keys = Keys(issue(NAMES, 0.0, LIFETIME))
    assert advance(keys, NAMES, 59 * DAY, LIFETIME) == keys
    begin = 60 * DAY
    announced = advance(keys, NAMES, begin, LIFETIME)
    assert announced.current == keys.current and announced.following is not None
    assert advance(announced, NAMES, begin + ANNOUNCED - 1, LIFETIME) == announced
    served = advance(announced, NAMES, begin + ANNOUNCED, LIFETIME)
    assert served.current == announced.following and served.bundle == served.current.ca + keys.current.ca
    done = advance(served, NAMES, begin + ANNOUNCED + WITHDRAWN, LIFETIME)
    assert done == Keys(served.current, None, b"", begin + ANNOUNCED + WITHDRAWN)
    assert all(from_secret(to_secret(found)) == found for found in (keys, announced, served, done))


def test_a_certificate_for_other_names_is_replaced_at_once() -> None:
    """The hooks were behind a Service, and are at a URL now: with the old one every guest would be refused."""
    keys = Keys(issue(["moorage-machines.moorage-system.svc"], 0.0, LIFETIME), None, b"before", 5.0)
    found = advance(keys, NAMES, 10.0, LIFETIME)
    assert serves(found.current, NAMES) and found.bundle == found.current.ca + keys.current.ca
    assert advance(found, NAMES, 11.0, LIFETIME) == found

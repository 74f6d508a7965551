"""What came of a request."""

from world import Broken


def must_refuse(*answers):
    """Refused if all of these answers are refusals by the server; what the server breaks at is none."""
    for answer in answers:
        if answer.status < 400:
            return "succeeded", repr(answer)
        if answer.status >= 500 and answer.status not in (501, 503, 507):
            raise Broken(f"the server broke: {answer!r}")
    return "refused", ", ".join(str(answer.status) for answer in answers)


def held_if(held, why):
    return ("held", "") if held else ("succeeded", why)

"""Verdicts from the answers of the server."""

from world import Broken


def must_refuse(*answers):
    """Refused if the server refused all of these requests; an internal error of the server is no refusal."""
    for answer in answers:
        if answer.status < 400:
            return "succeeded", repr(answer)
        if answer.status >= 500 and answer.status not in (501, 503, 507):
            raise Broken(f"the server broke: {answer!r}")
    return "refused", ", ".join(str(answer.status) for answer in answers)


def held_if(held, why):
    return ("held", "") if held else ("succeeded", why)

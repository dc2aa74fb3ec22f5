"""What somebody gets who has no token, or a wrong one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy.web import assets
from aiozerocopy.web.request import Refused

if TYPE_CHECKING:
    from aiozerocopy.web.request import Request


def refusal(request: Request, *, is_wrong: bool) -> Refused:
    """A page that asks for it where a browser goes; a line of text for programs."""
    challenge = {"WWW-Authenticate": "Bearer"}
    if "text/html" not in request.headers.get("accept", ""):
        text = "this token is wrong" if is_wrong else "a token is needed: /?token=..."
        return Refused(401, text, challenge)
    page = assets.filled(
        assets.TOKEN_PAGE,
        headline="This token is wrong" if is_wrong else "A token is needed",
        explanation=(
            "Links change when a stream is started anew. Ask for the link again."
            if is_wrong
            else "Only who has the whole link may watch. Open it, or enter its token."
        ),
    )
    return Refused(401, page, {**challenge, **assets.headers(assets.TOKEN_PAGE)})

"""Where a prompt is computed in a pool that has pods for it: there, or on the pod that decodes."""


def why_whole(uncached_tokens: int, cached_tokens: int, least_tokens: int) -> str | None:
    """Why the decode pod had better compute the prompt itself, as metrics name it; None: it had better not.

    Passing blocks on takes a round trip and the fetch whatever their number, and whatever is cached where the
    request decodes need not come from anywhere.
    """
    if uncached_tokens >= least_tokens:
        return None
    return "cached" if uncached_tokens + cached_tokens >= least_tokens else "short"

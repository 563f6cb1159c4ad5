"""The audit log is read while it is written."""

from bench import audit

LINE = b'{"verb": "patch", "objectRef": {"resource": "pods", "name": "a"}, "responseStatus": {"code": 200}}\n'


def test_a_line_that_is_still_being_written_is_left_for_the_next_look() -> None:
    for cut in range(len(LINE)):
        text = LINE + LINE[:cut]

        assert len(list(audit.writes(audit.whole(text).decode().splitlines()))) == 1
        assert text[len(audit.whole(text)) :] == LINE[:cut]

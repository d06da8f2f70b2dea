"""What the documents say is what the code does."""

from tests.docs import requests, settings


def test_ways_to_ask_are_as_the_webhook_answers() -> None:
    assert requests.page() == requests.PAGE.read_text(), "run `./dev run python -m tests.docs.requests`"


def test_settings_of_the_webhook_are_as_they_are() -> None:
    text = settings.PAGE.read_text()
    assert settings.page(text) == text, "run `./dev run python -m tests.docs.settings`"

"""A tab of the explorer in a browser, watched."""

from typing import Any


class Tab:
    """A tab of the explorer, and everything that went wrong or left the machine."""

    def __init__(self, browser: Any, home: str, path: str, *, width: int, scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        self.home = home
        self.outside: list[str] = []
        self.faults: list[str] = []
        self.page = self.another(path)

    def another(self, path: str) -> Any:
        """A second page of the same browser profile."""
        page = self.context.new_page()
        page.set_default_timeout(30_000)
        page.on("request", lambda request: self._asked(request.url))
        page.on("console", lambda message: self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        page.goto(self.home + path)
        return page

    def _asked(self, url: str) -> None:
        if not url.startswith((self.home, "data:", "blob:")):
            self.outside.append(url)


def settled(page: Any) -> None:
    """The numbers on the page are those of its address."""
    page.wait_for_selector('#explore[aria-busy="false"]')
    page.wait_for_selector("#guesses *, #error:not(:empty)")

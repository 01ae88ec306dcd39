"""The console's web application: pages over a fleet, a stream that says when it changed, and changes by operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from tidegate import words
from tidegate.client import NoSuchTopic, Unreachable
from tidegate.console.access import ANYBODY, SESSION_SECONDS, Access, Forbidden, bearer
from tidegate.console.changes import asked_version
from tidegate.console.forms import form_of
from tidegate.console.headers import SafeHeaders
from tidegate.console.numbers import whole_number
from tidegate.console.pages import decision_page, fleet_page, job_page, pools_page, what_if_page
from tidegate.console.settings import ConsoleSettings
from tidegate.console.topics import ConsoleTopics
from tidegate.events.decision import Decision
from tidegate.events.invalid import first_problem
from tidegate.fleet.fleet import Fleet, FleetJob
from tidegate.installed import engine
from tidegate.runtime.producer import NotDelivered, said
from tidegate.whatif.nearest import NearestChange, what_would_change
from tidegate.whatif.recorded import CannotTry, RecordedJob
from tidegate.whatif.topics import since_keyframe

HERE = Path(__file__).parent
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
STREAM_POLL_SECONDS = 0.1
STREAM_BEAT_SECONDS = 15.0
"""After this much silence a message is sent too: figures become old, and connections get lost, without any event."""

Clock = Callable[[], datetime]


def build(settings: ConsoleSettings, topics: ConsoleTopics, access: Access, key: str, clock: Clock) -> Starlette:
    """Return the application. `key` signs the sessions; a new one ends them all."""
    hosts = list(settings.console_allowed_hosts) or (list(LOOPBACK_NAMES) if settings.on_loopback else ["*"])
    console = Console(topics, access, clock)
    app = Starlette(
        routes=[
            Route("/", console.fleet),
            Route("/pools", console.pools),
            Route("/jobs/{job_id}", console.job),
            Route("/jobs/{job_id}/decisions/{sequence}", console.decision),
            Route("/jobs/{job_id}/what-if", console.what_if),
            Route("/jobs/{job_id}/change", console.change, methods=["POST"]),
            Route("/events", console.events),
            Route("/sign-in", console.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", console.sign_out, methods=["POST"]),
            Route("/healthz", console.healthy),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(SafeHeaders),
            Middleware(
                SessionMiddleware,
                secret_key=key,
                session_cookie="tidegate-console",
                max_age=SESSION_SECONDS,
                same_site="lax",  # a link in an alert leads to a page where its reader is still signed in
                https_only=settings.console_https,
            ),
        ],
        exception_handlers={
            Forbidden: console.forbidden,
            HTTPException: console.failed,
            NotDelivered: console.not_delivered,
            KafkaException: console.unreadable,
            TimeoutError: console.unreadable,
            Unreachable: console.unreadable,
            NoSuchTopic: console.unreadable,
        },
    )
    app.state.ending = console.ending
    return app


class Console:
    """The pages, and who may see and do what on them."""

    def __init__(self, topics: ConsoleTopics, access: Access, clock: Clock) -> None:
        self._topics = topics
        self._access = access
        self._clock = clock
        self._templates = Jinja2Templates(directory=HERE / "templates")
        self._templates.env.globals["time_of"] = lambda at: words.clock(at, clock())
        self._trials = asyncio.Semaphore(1)
        self.ending = asyncio.Event()
        """Set when the server ends: then the streams end too."""

    async def fleet(self, request: Request) -> Response:
        """Show all jobs, those that need an operator first."""
        return self._page(request, "fleet.html", partial(fleet_page, request.query_params, self._clock()))

    async def pools(self, request: Request) -> Response:
        """Show the slots of each cluster and who holds them."""
        return self._page(request, "pools.html", partial(pools_page, self._clock()))

    async def job(self, request: Request) -> Response:
        """Show one job: its state, its last hours, and what happened."""
        self._reader(request)
        await run_in_threadpool(self._topics.recall, request.path_params["job_id"])
        return self._page(request, "job.html", lambda fleet: job_page(self._job(fleet, request), self._clock()), "job")

    async def decision(self, request: Request) -> Response:
        """Show one decision with its reasons and inputs."""
        self._reader(request)
        with self._topics.reading() as fleet:
            job = self._job(fleet, request)
        asked = request.path_params["sequence"]
        sequence = whole_number(asked)
        found = None
        if sequence is not None:
            found = await run_in_threadpool(self._topics.decision, job.spec.job_id, sequence)
        if found is None:
            raise HTTPException(404, f"There is no decision on {job.spec.job_id} with sequence {asked:.40}.")
        results = await run_in_threadpool(self._topics.results, found)
        changes: list[NearestChange] | str | None = None
        if "change" in request.query_params:
            async with self._trials:
                changes = await run_in_threadpool(self._changes_of, job, found)
        return self._page(request, "decision.html", lambda _fleet: decision_page(job, found, results, changes))

    async def what_if(self, request: Request) -> Response:
        """Show what another policy would have done, one request at a time."""
        self._reader(request)
        with self._topics.reading() as fleet:
            job = self._job(fleet, request)
        asked = request.query_params

        def recorded(since: timedelta) -> RecordedJob:
            return self._topics.recorded(job.spec.job_id, self._clock() - since)

        async with self._trials:
            shown = await run_in_threadpool(what_if_page, job, asked, sorted(engine().policies), recorded)
        return self._page(request, "what_if.html", lambda _fleet: shown, status=422 if shown["problem"] else 200)

    async def change(self, request: Request) -> Response:
        """Pause, resume or scale a job: publish the next version of its spec."""
        form = await form_of(request)
        person = self._access.operator(request, form.get("form", ""), self._clock())
        with self._topics.reading() as fleet:
            spec = self._job(fleet, request).spec
        try:
            new, done = asked_version(spec, form, person, self._clock())
            await run_in_threadpool(self._topics.publish, new)
        except ValueError as error:
            raise HTTPException(422, _problem(error)) from None
        if bearer(request) is not None:
            return JSONResponse({"job_id": new.job_id, "version": new.version})
        request.session["done"] = done
        return RedirectResponse(f"/jobs/{new.job_id}", HTTPStatus.SEE_OTHER)

    async def events(self, request: Request) -> Response:
        """Stream a message for each change of the fleet, or of one job with `?job=`, and now and then without one."""
        self._reader(request)
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def sign_in(self, request: Request) -> Response:
        """Trade a token for a session."""
        problem = ""
        if request.method == "POST":
            form = await form_of(request)
            try:
                self._access.sign_in(request, form.get("token", ""), self._clock())
            except Forbidden as error:
                await asyncio.sleep(0.5)  # guessing takes time
                problem = str(error)
            else:
                return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        shown = {"problem": problem, "person": self._access.person(request, self._clock()) or ANYBODY}
        return self._render(request, "sign_in.html", shown, status=401 if problem else 200)

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        request.session.clear()
        return RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)

    async def healthy(self, _request: Request) -> Response:
        """Say whether the topics are being read."""
        state = self._topics.state
        return JSONResponse({"state": state}, status_code=200 if state in {"live", "loading"} else 503)

    async def forbidden(self, request: Request, error: Exception) -> Response:
        """Show why a request was not carried out; lead to the sign-in where that helps."""
        status = error.status if isinstance(error, Forbidden) else 403
        if status == HTTPStatus.UNAUTHORIZED and request.method == "GET" and bearer(request) is None:
            return RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        return self._error(request, status, str(error))

    async def failed(self, request: Request, error: Exception) -> Response:
        """Show what is wrong with a request."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        return self._error(request, status, error.detail if isinstance(error, HTTPException) else str(error))

    async def not_delivered(self, request: Request, error: Exception) -> Response:
        """Say that the broker did not take a change."""
        return self._error(request, 503, f"The broker did not acknowledge the change: {error}")

    async def unreadable(self, request: Request, error: Exception) -> Response:
        """Say that the topics cannot be read, or not in time."""
        return self._error(request, 504 if isinstance(error, TimeoutError) else 503, said(error))

    def _changes_of(self, job: FleetJob, decision: Decision) -> list[NearestChange] | str:
        """Return what it would take to change a decision, or why that cannot be told."""
        try:
            since = since_keyframe(decision, job.spec)
            recorded = self._topics.recorded(job.spec.job_id, since, until=decision.sequence)
            return what_would_change(recorded, decision.sequence)
        except CannotTry as error:
            return str(error)

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        """Yield messages until the server or the session ends. A sign-out is only seen in a next request."""
        job_id, seen, silent = request.query_params.get("job"), -1, 0.0
        while not self.ending.is_set():
            now = self._revision(job_id)
            if now != seen or silent >= STREAM_BEAT_SECONDS:
                if self._access.person(request, self._clock()) is None:
                    return
                yield f"event: changed\ndata: {now}\n\n"
                seen, silent = now, 0.0
            await asyncio.sleep(STREAM_POLL_SECONDS)
            silent += STREAM_POLL_SECONDS

    def _revision(self, job_id: str | None) -> int:
        if job_id is None:
            return self._topics.revision
        with self._topics.reading() as fleet:
            job = fleet.get(job_id)
            return job.revision if job is not None else 0

    def _reader(self, request: Request) -> None:
        if self._access.person(request, self._clock()) is None:
            raise Forbidden("Sign in first.", 401)

    def _job(self, fleet: Fleet, request: Request) -> FleetJob:
        job = fleet.get(request.path_params["job_id"])
        if job is None:
            raise HTTPException(404, f"Tidegate does not manage a job {request.path_params['job_id']!r}.")
        return job

    def _page(
        self,
        request: Request,
        template: str,
        content: Callable[[Fleet], Mapping[str, Any]],
        follows: str = "fleet",
        status: int = 200,
    ) -> Response:
        self._reader(request)
        with self._topics.reading() as fleet:
            shown = content(fleet)
        return self._render(request, template, {"follows": follows, **shown}, status)

    def _render(self, request: Request, template: str, shown: Mapping[str, Any], status: int) -> Response:
        person = self._access.person(request, self._clock()) or ANYBODY
        common = {
            "person": person,
            "form": request.session.get("form", ""),
            # A page that is about to be left may still fetch itself again: that must not take the message away.
            "done": request.session.pop("done", "") if "x-refresh" not in request.headers else "",
            "changes_are_possible": self._access.changes_are_possible,
            "state": self._topics.state,
            "now": self._clock(),
        }
        return self._templates.TemplateResponse(request, template, {**common, **shown}, status_code=status)

    def _error(self, request: Request, status: int, text: str) -> Response:
        if bearer(request) is not None:
            return JSONResponse({"error": text}, status_code=status)
        phrase = HTTPStatus(status).phrase
        return self._render(request, "error.html", {"status": status, "phrase": phrase, "text": text}, status)


def _problem(error: ValueError) -> str:
    """Return in a line what is wrong with a form."""
    return first_problem(error) if isinstance(error, ValidationError) else str(error)

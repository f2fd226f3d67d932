"""A W&B server for tests: one thread pool on 127.0.0.1 that answers what ``wandb sync`` asks, or misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Manner = Literal["well", "500", "401", "hang", "breaks", "no_files"]


class Loopback(ThreadingHTTPServer):
    """``manner``: well answers everything; 500 and 401 refuse everything; hang accepts and never answers.

    breaks: well for the first two operations, when the run exists on the server; then 500.
    no_files: well, but 500 for each file.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # a run with profiles uploads hundreds of files at once

    def __init__(self, manner: Manner) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manner = manner
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.ended = threading.Event()
        self.operations: list[str] = []  # GraphQL operations, in order
        self.uploads: dict[str, bytes] = {}  # path → body of each PUT
        self.streamed: list[dict[str, Any]] = []  # bodies of file_stream requests
        self.runs: list[dict[str, Any]] = []  # variables of each UpsertBucket
        self.reports: list[dict[str, Any]] = []  # variables of each upsertView
        self.known: dict[str, Any] | None = None  # the summary of the run that is here already

    def handle_error(self, request: object, client_address: object) -> None:
        """A killed client is part of the plan."""


@contextmanager
def loopback(manner: Manner = "well") -> Iterator[Loopback]:
    """A server that is up inside the block."""
    server = Loopback(manner)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Loopback

    def do_POST(self) -> None:
        body = self._body()
        if self._misbehaves():
            return
        if self.path.endswith("/graphql"):
            asked = json.loads(body)
            name = asked.get("operationName") or asked["query"].split("(")[0].split("{")[0].split()[-1]
            self.server.operations.append(name)
            self._answer(200, {"data": self._data(name, asked.get("variables") or {})})
            return
        if self.path.endswith("/file_stream"):
            self.server.streamed.append(json.loads(body))
        self._answer(200, {})

    def do_PUT(self) -> None:
        body = self._body()
        if not self._misbehaves():
            self.server.uploads[self.path] = body
            self._answer(200, {})

    def do_GET(self) -> None:
        if not self._misbehaves():
            self._answer(200, {})

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def _data(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        server = self.server
        match operation:
            case "UpsertBucket":
                server.runs.append(variables)
            case "upsertView":
                server.reports.append(variables)
            case "Run" if server.known is not None:
                return {"project": {"run": _run(variables["name"], server.known)}}
        return _data(operation, variables, server.url)

    def _misbehaves(self) -> bool:
        manner = self.server.manner
        if manner == "breaks":
            manner = "500" if len(self.server.operations) >= 2 else "well"
        elif manner == "no_files":
            manner = "500" if self.command == "PUT" else "well"
        if manner == "hang":
            self.server.ended.wait()
            self.close_connection = True
        elif manner != "well":
            self._answer(int(manner), {"errors": [{"message": "not today"}]})
        return manner != "well"

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, code: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _data(operation: str, variables: dict[str, Any], url: str) -> dict[str, Any]:
    """The least that the client is content with."""
    asked = variables.get("input") or {}
    match operation:
        case "Viewer":
            user = {"id": "u", "entity": "me", "username": "me", "email": "me@here", "flags": "{}"}
            return {"viewer": user | {"teams": {"edges": []}}}
        case "GetDefaultEntity":
            return {"viewer": {"id": "u", "entity": "me"}}
        case "UpsertBucket":
            name = variables.get("name") or "run"
            project = {"id": "p", "name": variables.get("project") or "p", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": name, "displayName": name, "description": "", "config": "{}"}
            bucket |= {"sweepName": None, "historyLineCount": 0, "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        case "ArtifactType":
            return {"project": {"artifact": None}}
        case "CreateArtifact":
            artifact = {"id": "a", "state": "PENDING", "artifactSequence": {"id": "s", "latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        case "CreateArtifactManifest":
            file = {"id": "f", "uploadUrl": f"{url}/put/manifest", "uploadHeaders": []}
            return {"createArtifactManifest": {"artifactManifest": {"id": "m", "file": file}}}
        case "CreateArtifactFiles":
            nodes = [_artifact_file(spec, url) for spec in asked["artifactFiles"]]
            return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}
        case "CommitArtifact":
            return {"commitArtifact": {"artifact": {"id": "a", "digest": "d"}}}
        case "ProjectInternalId":
            return {"project": {"id": "p", "internalId": "internal-p"}}
        case "GetProjects":
            page = {"endCursor": None, "hasNextPage": False}
            node = {"id": "p", "name": "kernel-runner", "entityName": "me", "createdAt": "2025-01-31T10:11:12"}
            node |= {"isBenchmark": False, "user": None}
            return {"models": {"edges": [{"node": node, "cursor": "c"}], "pageInfo": page}}
        case "upsertView":
            project = {"id": "p", "name": variables["projectName"], "entityName": variables["entityName"]}
            view = {"id": "Vmlldzox", "type": variables["type"], "name": variables["name"], "project": project}
            view |= {name: variables[name] for name in ("displayName", "description", "spec")}
            return {"upsertView": {"view": view | {"updatedAt": "2025-01-31T10:11:12"}, "inserted": True}}
        case "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{url}/put/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
    return {}


def _run(name: str, summary: dict[str, Any]) -> dict[str, Any]:
    texts = {"config": "{}", "systemMetrics": "{}", "summaryMetrics": json.dumps(summary), "historyKeys": "{}"}
    facts = {"id": "b", "name": name, "displayName": name, "state": "finished", "tags": [], "readOnly": False}
    facts |= {"createdAt": "2025-01-31T10:11:12", "heartbeatAt": None, "description": "", "notes": "", "group": None}
    user = {"name": "me", "username": "me"}
    return facts | texts | {"sweepName": None, "jobType": None, "projectId": 1, "user": user, "commit": None}


def _artifact_file(spec: dict[str, Any], url: str) -> dict[str, Any]:
    path = spec["name"]
    return {
        "name": path,
        "storagePath": f"art/{path}",
        "uploadUrl": f"{url}/put/art/{path}",
        "uploadHeaders": [],
        "uploadMultipartUrls": None,
        "artifact": {"id": "a"},
    }

"""S3, and stores that speak its protocol: fsspec's client, with bounded waits, few requests, and conditional writes.

Endpoint, region and credentials are found as every AWS client finds them: `AWS_ENDPOINT_URL`, `AWS_REGION`,
`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, a profile, or the role of the pod or machine.

A folder is what keys start with. Hadoop marks empty folders with an object of their name; it is none of their files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fsspec.asyn import sync
from s3fs import S3FileSystem

TIMEOUT_SECONDS = 5.0
_TRIES = 2
_OVERTAKEN = (404, 409, 412)
"""How S3 says that a condition does not hold; 409 if somebody else writes at the same instant."""
_BEYOND_END = 416


class S3(S3FileSystem):  # type: ignore[misc]  # s3fs is untyped
    """One S3. Raises what fsspec raises."""

    cachable = False
    has_folders = False
    retries = 1
    """Those of s3fs come on top of those of botocore."""

    def __init__(self, timeout_seconds: float, config: Mapping[str, Any], **options: Any) -> None:
        bounds = {
            "connect_timeout": timeout_seconds,
            "read_timeout": timeout_seconds,
            "retries": {"total_max_attempts": _TRIES, "mode": "standard"},
        }
        super().__init__(use_listings_cache=False, config_kwargs={**bounds, **config}, **options)
        told = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        at = options.get("endpoint_url") or next((os.environ[name] for name in told if os.environ.get(name)), "AWS")
        self.advice = (
            f". {at} was asked: are AWS_ENDPOINT_URL, AWS_REGION and the credentials of this service right"
            " (docs/how-to/s3.md)?"
        )

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002 - fsspec's signature
        """Return what is in a folder, by one request for each 1,000 names."""
        path = self._strip_protocol(path).rstrip("/")
        try:
            found = sync(self.loop, self._lsdir, path)
        except FileNotFoundError as error:
            raise OSError(str(error)) from error  # a bucket, for there are no folders
        if not found:
            bucket, key, _ = self.split_path(path)
            self.call_s3("head_object", Bucket=bucket, Key=key)  # raises, unless it is a file
            found = [{"name": path, "type": "file"}]
            return found if detail else [path]
        found = [info for info in found if str(info["name"]).rstrip("/") != path]
        return found if detail else [info["name"] for info in found]

    async def _call_s3(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super()._call_s3(method, *args, **kwargs)
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":  # nobody knows what is in it
                raise OSError(str(error)) from error
            raise

    async def _cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        try:
            return bytes(await super()._cat_file(path, *args, **kwargs))
        except OSError as error:
            if _status(error) == _BEYOND_END:
                return b""
            raise

    def replace_file(self, path: str, data: bytes) -> None:
        """Write a whole file, whatever was there."""
        self.pipe_file(path, data)

    def create_file(self, path: str, data: bytes) -> bool:
        """Write a whole file if there is none."""
        try:
            self.pipe_file(path, data, mode="create")
        except OSError as error:
            if _status(error) in _OVERTAKEN:
                return False
            raise
        return True

    def swap_file(self, path: str, was: bytes, data: bytes) -> bool:
        """Write a whole file if it still holds what it was; of several who do that at once, one succeeds."""
        bucket, key, _ = self.split_path(path)
        try:
            found = sync(self.loop, self._content, bucket, key)
            if found["Body"] != was:
                return False
            self.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfMatch=found["ETag"])
        except OSError as error:
            if _status(error) in _OVERTAKEN:
                return False
            raise
        return True

    async def _content(self, bucket: str, key: str) -> dict[str, Any]:
        """Return a file, and its ETag."""
        answer = await self._call_s3("get_object", Bucket=bucket, Key=key)
        async with answer["Body"] as body:
            return {"Body": await body.read(), "ETag": answer["ETag"]}


def _answer(error: BaseException) -> Mapping[str, Any]:
    """Return what the server said, from an error of fsspec's; nothing if it said nothing."""
    of = error if hasattr(error, "response") else error.__cause__
    return getattr(of, "response", None) or {}


def _status(error: BaseException) -> int | None:
    status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None if status is None else int(status)


def _code(error: BaseException) -> str:
    return str(_answer(error).get("Error", {}).get("Code", ""))


def open_s3(
    *, timeout_seconds: float = TIMEOUT_SECONDS, config_kwargs: Mapping[str, Any] | None = None, **options: Any
) -> S3:
    """Return the S3 that the environment names.

    Args:
        timeout_seconds: longest wait for one answer; there are two tries.
        config_kwargs: settings of botocore, such as `{"s3": {"addressing_style": "path"}}`.
        options: others of `s3fs.S3FileSystem`, such as `endpoint_url` or `profile`.
    """
    return S3(timeout_seconds, config_kwargs or {}, **options)

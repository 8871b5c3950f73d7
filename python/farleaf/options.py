"""Options of ``farleaf.open`` and ``Store.table``, for type checkers; ``docs/python.md`` says what each means."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Literal, TypedDict, Union

__all__ = ["OpenOptions", "TableOptions"]

_Path = Union[str, "PathLike[str]"]


class OpenOptions(TypedDict, total=False):
    """Options of ``farleaf.open``."""

    create: bool
    cache: str | int | None
    pool_bytes: str | int | None
    memory_servers: int
    settings: Mapping[str, str | int | float] | None
    async_workers: int
    join_timeout: float
    listen: str | None
    advertise: str | None
    insecure_public: bool
    guest_operations: int
    recovers: bool
    tls_ca: _Path | None
    tls_cert: _Path | None
    tls_key: _Path | None
    tls_server_name: str | None
    etcd_ca: _Path | None
    etcd_cert: _Path | None
    etcd_key: _Path | None
    etcd_user: str | None
    etcd_password: str | None


class TableOptions(TypedDict, total=False):
    """Options of ``Store.table``."""

    create: bool
    engine: str | None
    key_bytes: int | None
    key_bytes_max: int | None
    value_bytes: int | None
    content: Literal["raw", "records"]
    settings: Mapping[str, str | int | float] | None

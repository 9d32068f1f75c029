"""A PMIx server: what Open MPI's ranks ask for each other when they start. It listens on loopback alone.

    server = Server("/usr/lib/openmpi/libpmix.so.2", ranks=4, folder="/tmp/job")
    environments = [server.environment(rank) for rank in range(4)]     # with which processes are ranks 0..3 of one job
    server.close()

Open MPI's own mpiexec serves the same from the same library, but listens on all interfaces of the machine, even for a
job on one machine, and has no setting against it. This module needs nothing but the standard library, so that a program
that uses it starts at once.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Mapping

_STRING, _UINT32 = ctypes.c_uint16(3), ctypes.c_uint16(14)
"""PMIX_STRING and PMIX_UINT32 of pmix_common.h."""
_FINE = (0, -157)
"""PMIX_SUCCESS and PMIX_OPERATION_SUCCEEDED: the latter where nothing is left to wait for."""
_CALLBACKS = 64
"""More pointers than pmix_server_module_t has (33 in version 5). All are null: whatever concerns this machine alone the
library does by itself, and what needs others (spawning, publishing) it refuses."""


class PmixError(Exception):
    """The library refused a call, or there is no such library."""


class _Proc(ctypes.Structure):
    """pmix_proc_t."""

    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Array(ctypes.Structure):
    """pmix_data_array_t."""

    _fields_ = (("type", ctypes.c_uint16), ("size", ctypes.c_size_t), ("array", ctypes.c_void_p))


class Server:
    """Serves one job of `ranks` ranks on this machine; one per process. It keeps its files in `folder`.

    Raises:
        PmixError: `library` cannot be loaded, or refuses.
    """

    def __init__(self, library: str, ranks: int, folder: str) -> None:
        # Lists of ranks as plain text: compressed ones are no C strings.
        os.environ["PMIX_MCA_preg"] = "raw"  # noqa: SIM112
        try:
            self._library = ctypes.CDLL(library)
            self._library.PMIx_Error_string.restype = ctypes.c_char_p
            self._library.PMIx_Info_list_start.restype = ctypes.c_void_p
        except (OSError, AttributeError) as error:
            raise PmixError(f"{library} is no PMIx library: {error}") from error
        self._module = (ctypes.c_void_p * _CALLBACKS)()
        folders = {"pmix.srvr.tmpdir": folder, "pmix.sys.tmpdir": folder}
        self._call("PMIx_server_init", self._module, *self._infos(folders))
        self._namespace = f"autoshard-{os.getpid()}".encode()
        job = self._infos(_job(self._namespace.decode(), ranks, folder, self._text))
        self._call("PMIx_server_register_nspace", self._namespace, ranks, *job, None, None)

    def environment(self, rank: int) -> dict[str, str]:
        """The variables that make a process of this user rank `rank` of the job."""
        proc, found = _Proc(self._namespace, rank), ctypes.POINTER(ctypes.c_char_p)()
        user = ctypes.c_uint32(os.getuid()), ctypes.c_uint32(os.getgid())
        self._call("PMIx_server_register_client", ctypes.byref(proc), *user, None, None, None)
        self._call("PMIx_server_setup_fork", ctypes.byref(proc), ctypes.byref(found))
        variables = {}
        while text := found[len(variables)]:
            name, _, value = text.decode().partition("=")
            variables[name] = value
        return variables

    def close(self) -> None:
        """Stop serving, and remove the files."""
        self._library.PMIx_server_finalize()

    def _text(self, function: str, given: str) -> str:
        """The list `given` in the notation of PMIx."""
        found = ctypes.c_char_p()
        self._call(function, given.encode(), ctypes.byref(found))
        return (found.value or b"").decode()

    def _infos(self, values: Mapping[str, str | int]) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
        """Keys and values as an array of pmix_info_t, and its length."""
        infos, array = ctypes.c_void_p(self._library.PMIx_Info_list_start()), _Array()
        for key, value in values.items():
            given = (ctypes.c_char_p(value.encode()), _STRING) if isinstance(value, str) else _number(value)
            self._call("PMIx_Info_list_add", infos, key.encode(), *given)
        self._call("PMIx_Info_list_convert", infos, ctypes.byref(array))
        return ctypes.c_void_p(array.array), ctypes.c_size_t(array.size)

    def _call(self, function: str, *given: object) -> None:
        status = getattr(self._library, function)(*given)
        if status not in _FINE:
            reason = self._library.PMIx_Error_string(ctypes.c_int(status)).decode()
            raise PmixError(f"{function}: {reason} ({status})")


def _number(value: int) -> tuple[object, ctypes.c_uint16]:
    return ctypes.byref(ctypes.c_uint32(value)), _UINT32


def _job(name: str, ranks: int, folder: str, text) -> dict[str, str | int]:
    """What ranks may ask about their job: the keys are those of pmix_common.h."""
    listed = ",".join(map(str, range(ranks)))
    sizes = ("pmix.job.size", "pmix.univ.size", "pmix.max.size", "pmix.local.size", "pmix.app.size")
    return dict.fromkeys(sizes, ranks) | {
        "pmix.jobid": name,
        "pmix.num.nodes": 1,
        "pmix.job.num.apps": 1,
        "pmix.appnum": 0,
        "pmix.lpeers": listed,
        "pmix.nmap": text("PMIx_generate_regex", socket.gethostname()),
        "pmix.pmap": text("PMIx_generate_ppn", listed),
        "pmix.tmpdir": folder,
        "pmix.nsdir": folder,
    }

"""The standard-library modules whose source is the embedded text: a fixed list in a fixed order.

Chosen to be pure Python, of at least 4 kB, in every standard library from Python 3.11 to 3.14 on
every platform, and not about to be removed. Left out: what some systems package apart (tkinter,
turtle, idlelib, ensurepip, test), tables more than text (encodings.*, html.entities, pydoc_data),
and modules whose source moves between versions (datetime, pathlib). About 6.6 million bytes; the
bytes differ from one Python release to the next, so a run records their hash.
"""

from __future__ import annotations

MODULES: tuple[str, ...] = (
    "__future__", "_collections_abc", "_compat_pickle", "_markupbase", "_pydecimal", "_pyio",
    "_strptime", "_threading_local", "_weakrefset", "abc", "argparse", "ast", "asyncio.base_events",
    "asyncio.base_subprocess", "asyncio.events", "asyncio.futures", "asyncio.locks",
    "asyncio.proactor_events", "asyncio.protocols", "asyncio.queues", "asyncio.runners",
    "asyncio.selector_events", "asyncio.sslproto", "asyncio.staggered", "asyncio.streams",
    "asyncio.subprocess", "asyncio.taskgroups", "asyncio.tasks", "asyncio.timeouts",
    "asyncio.transports", "asyncio.unix_events", "base64", "bdb", "bz2", "calendar", "cmd", "code",
    "codecs", "codeop", "collections", "colorsys", "compileall", "concurrent.futures._base",
    "concurrent.futures.process", "concurrent.futures.thread", "configparser", "contextlib", "copy",
    "copyreg", "csv", "ctypes", "ctypes.util", "curses.has_key", "curses.textpad", "dataclasses",
    "dbm", "dbm.dumb", "difflib", "dis", "doctest", "email._encoded_words",
    "email._header_value_parser", "email._parseaddr", "email._policybase", "email.charset",
    "email.contentmanager", "email.feedparser", "email.generator", "email.header",
    "email.headerregistry", "email.message", "email.parser", "email.policy", "email.quoprimime",
    "email.utils", "encodings", "enum", "filecmp", "fileinput", "fnmatch", "fractions", "ftplib",
    "functools", "genericpath", "getopt", "getpass", "gettext", "glob", "graphlib", "gzip",
    "hashlib", "heapq", "hmac", "html", "html.parser", "http", "http.client", "http.cookiejar",
    "http.cookies", "http.server", "imaplib", "importlib", "importlib.metadata",
    "importlib.resources._adapters", "importlib.util", "inspect", "ipaddress", "json",
    "json.decoder", "json.encoder", "linecache", "locale", "logging", "logging.config",
    "logging.handlers", "lzma", "mailbox", "mimetypes", "modulefinder",
    "multiprocessing.connection", "multiprocessing.context", "multiprocessing.forkserver",
    "multiprocessing.heap", "multiprocessing.managers", "multiprocessing.pool",
    "multiprocessing.process", "multiprocessing.queues", "multiprocessing.reduction",
    "multiprocessing.resource_sharer", "multiprocessing.resource_tracker",
    "multiprocessing.shared_memory", "multiprocessing.sharedctypes", "multiprocessing.spawn",
    "multiprocessing.synchronize", "multiprocessing.util", "netrc", "ntpath", "numbers", "operator",
    "optparse", "os", "pdb", "pickle", "pickletools", "platform", "plistlib", "poplib", "posixpath",
    "pprint", "pty", "py_compile", "pyclbr", "pydoc", "queue", "quopri", "random", "re",
    "re._compiler", "re._constants", "re._parser", "reprlib", "rlcompleter", "runpy", "sched",
    "selectors", "shelve", "shlex", "shutil", "smtplib", "socket", "socketserver", "ssl", "stat",
    "statistics", "string", "subprocess", "symtable", "sysconfig", "tabnanny", "tarfile",
    "tempfile", "textwrap", "threading", "timeit", "tokenize", "tomllib._parser", "trace",
    "traceback", "tracemalloc", "types", "typing", "unittest.async_case", "unittest.case",
    "unittest.loader", "unittest.main", "unittest.mock", "unittest.result", "unittest.runner",
    "unittest.suite", "unittest.util", "urllib.parse", "urllib.request", "urllib.robotparser",
    "uuid", "warnings", "wave", "weakref", "webbrowser", "wsgiref.handlers", "wsgiref.headers",
    "wsgiref.simple_server", "wsgiref.util", "wsgiref.validate", "xml.dom", "xml.dom.expatbuilder",
    "xml.dom.minidom", "xml.dom.pulldom", "xml.dom.xmlbuilder", "xml.etree.ElementInclude",
    "xml.etree.ElementPath", "xml.etree.ElementTree", "xml.sax._exceptions", "xml.sax.expatreader",
    "xml.sax.handler", "xml.sax.saxutils", "xml.sax.xmlreader", "xmlrpc.client", "xmlrpc.server",
    "zipapp", "zipfile", "zoneinfo._common", "zoneinfo._tzpath", "zoneinfo._zoneinfo",
)  # fmt: skip

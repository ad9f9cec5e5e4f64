"""Files of an export on any file system of Hadoop: local directories, s3a://, hdfs://. Whole files appear by a rename."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pyspark_shardbroker.errors import OptionError

__all__ = ["Files"]

F = TypeVar("F", bound=Callable[..., Any])
_NO_CLASS = ("java.lang.ClassNotFoundException", "java.lang.NoClassDefFoundError", "UnsupportedFileSystemException")


def _said(error: Py4JJavaError) -> str:
    """Returns the error of the JVM in one line."""
    lines = str(error.java_exception.toString()).splitlines()
    return lines[0] if lines else "no reason given"


def _os_errors(method: F) -> F:
    """Converts Hadoop's errors to an OSError with the name of the file."""

    @wraps(method)
    def wrapped(self: "Files", name: str, *arguments: Any) -> Any:
        try:
            return method(self, name, *arguments)
        except Py4JJavaError as error:
            raise OSError(f"{self.path(name)}: {_said(error)}") from None

    return cast(F, wrapped)


class Files:
    """The files below one directory. Names are relative to it. A failed operation raises OSError."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Raises OptionError if Spark has no driver for this kind of file system."""
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._root = self._path(root)
            self._fs: Any = self._root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        except Py4JJavaError as error:
            said = _said(error)
            if not any(name in said for name in _NO_CLASS):
                raise OSError(f"{root}: {said}") from None
            hadoop = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            raise OptionError(
                f"--to {root}: this Spark has nothing that writes there; for s3a:// add --conf spark.jars.packages="
                f"org.apache.hadoop:hadoop-aws:{hadoop} and what docs/spark-cluster.md names beside it; {said}"
            ) from None
        self._root = self._fs.makeQualified(self._root)
        self.root = str(self._root.toString())

    def path(self, name: str) -> str:
        """Returns the full name."""
        return f"{self.root}/{name}"

    def local(self, name: str) -> str:
        """Returns the full name of a file on a mounted file system."""
        return self.path(name).removeprefix("file://").removeprefix("file:")

    def _of(self, name: str) -> Any:
        return self._path(self.path(name))

    @_os_errors
    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._of(name)))

    @_os_errors
    def read(self, name: str) -> str | None:
        """Returns the content of a small text file, or None if it does not exist."""
        if not self.exists(name):
            return None
        stream = self._fs.open(self._of(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    @_os_errors
    def write(self, name: str, text: str) -> None:
        """Writes a file atomically: at any moment the whole file exists or none."""
        new = self._of(f"{name}.new")
        stream = self._fs.create(new, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        self._fs.delete(self._of(name), False)
        if not self._fs.rename(new, self._of(name)):
            raise OSError(f"{self.path(name)} cannot be written")

    @_os_errors
    def delete(self, name: str) -> None:
        """Deletes a file or a directory with its content; no error without one."""
        self._fs.delete(self._of(name), True)

    @_os_errors
    def move(self, name: str, target: str) -> None:
        """Moves a file. Raises OSError."""
        self._fs.mkdirs(self._of(target).getParent())
        if not self._fs.rename(self._of(name), self._of(target)):
            raise OSError(f"{self.path(name)} cannot be moved to {self.path(target)}")

    def list(self, name: str = "") -> Iterator[tuple[str, int]]:
        """Yields names and sizes of all files below a directory, except for paths with a part that begins with `.` or `_`."""
        start = self._of(name) if name else self._root
        if not self._fs.exists(start):
            return
        found = self._fs.listFiles(start, True)
        hidden = f"{start.toString()}/"
        if name:
            hidden = f"{self._fs.makeQualified(start).toString()}/"
        while found.hasNext():
            status = found.next()
            full = str(status.getPath().toString())
            below = full.removeprefix(hidden)
            if not any(part.startswith((".", "_")) for part in below.split("/")):
                yield full.removeprefix(f"{self.root}/"), int(status.getLen())

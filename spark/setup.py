"""Compiles the optional module; without a compiler the package reads with numpy alone, more slowly."""

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCE = "pyspark_shardbroker/_compiled.pyx"
DECODER = Extension("pyspark_shardbroker._compiled", [SOURCE], optional=True, extra_compile_args=["-O3"])

setup(ext_modules=cythonize([DECODER]))

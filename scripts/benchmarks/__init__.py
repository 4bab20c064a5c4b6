"""The figures the project promises, measured. Each suite (`hub`) is a module or package with one function `measure`."""

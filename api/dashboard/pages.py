from fastapi import FastAPI


def install(app: FastAPI) -> None:
    pass

"""Serves OpenStack Placement with a database in memory: `python placement_peer_server.py TREES`. It is run by the interpreter of
the peer's own virtual environment. Prints its address when it serves."""

# mypy: ignore-errors
# Its libraries are not those of this project.

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any


def main(trees: str) -> None:
    import waitress
    from oslo_config import cfg
    from placement import conf, db_api, deploy
    from placement.db.sqlalchemy import migration

    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config.set_override("connection", "sqlite://", "placement_database")
    config.set_override("auth_strategy", "noauth2", "api")
    config([], project="placement", default_config_files=[])
    db_api.configure(config)
    engine = db_api.get_placement_engine()
    migration.create_schema(engine)
    app = deploy.loadapp(config)
    logging.getLogger().setLevel(logging.ERROR)
    _fill(engine, json.loads(Path(trees).read_bytes()))
    sock = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    os.nice(10)  # as the worker does
    waitress.serve(app, sockets=[sock], threads=1)  # there is one database in memory


def _fill(engine: Any, trees: list[tuple[str, str, str | None, dict[str, int], list[str]]]) -> None:
    """Writes what its interface would take an hour to write."""
    import sqlalchemy as sa

    schema = sa.MetaData()
    schema.reflect(engine)
    tables = schema.tables
    with engine.begin() as connection:
        classes, traits = (
            dict(connection.execute(sa.select(tables[name].c.name, tables[name].c.id)).all())
            for name in ("resource_classes", "traits")
        )
        ids: dict[str, int] = {}
        roots: dict[int, int] = {}
        providers, inventories, has = [], [], []
        for ident, (uuid, name, parent, offers, having) in enumerate(trees, 1):
            ids[uuid] = ident
            above = ids[parent] if parent is not None else None
            roots[ident] = roots[above] if above is not None else ident
            providers.append(
                {
                    "id": ident,
                    "uuid": uuid,
                    "name": name,
                    "generation": 1,
                    "root_provider_id": roots[ident],
                    "parent_provider_id": above,
                }
            )
            for offered, total in offers.items():
                inventories.append(
                    {
                        "resource_provider_id": ident,
                        "resource_class_id": classes[offered],
                        "total": total,
                        "reserved": 0,
                        "min_unit": 1,
                        "max_unit": 2**31 - 1,
                        "step_size": 1,
                        "allocation_ratio": 1.0,
                    }
                )
            has += [{"resource_provider_id": ident, "trait_id": traits[trait]} for trait in having]
        connection.execute(sa.insert(tables["resource_providers"]), providers)
        connection.execute(sa.insert(tables["inventories"]), inventories)
        connection.execute(sa.insert(tables["resource_provider_traits"]), has)


main(sys.argv[1])

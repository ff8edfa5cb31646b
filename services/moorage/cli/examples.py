"""Examples of each command for its `--help`."""

from __future__ import annotations

from collections.abc import Sequence

#: Command, with the names of its own commands → examples. "" is the overview.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "moorage up --example                     # run a mesh on this machine with an example",
        "moorage apply -f shop.yaml               # place and deploy an application",
        "moorage why shop                         # where it runs, or what it lacks",
        "moorage get clusters                     # what the fleet has, and what is used",
    ),
    "get": (
        "moorage get clusters",
        "moorage get nodes --cluster lab/edge-1 --sort-by .free.cpu",
        "moorage get application shop -o yaml",
        "moorage get groups -w",
        "moorage get resourceclasses -w",
        "moorage get parts --class nvidia.high.mem",
        "moorage get decisions --all --group shop",
        "moorage get clusters -l region=eu -o jsonpath='{.items[*].id}'",
        "moorage get nodes -o custom-columns=NODE:.name,CPU:.free.cpu --no-headers",
    ),
    "describe": ("moorage describe application shop", "moorage describe cluster lab/edge-1"),
    "why": ("moorage why shop", "moorage why shop -o wide", "moorage why telco/core/v2/group-1 -o json"),
    "candidates": ("moorage candidates shop", "moorage candidates shop -o json"),
    "placement": ("moorage placement candidates 'resources=VCPU:1'",),
    "placement candidates": (
        "moorage placement candidates 'resources=VCPU:1'",
        "moorage placement candidates 'resources_C=VCPU:2&resources_A=FPGA:1&same_subtree=_C,_A' --explain",
    ),
    "replay": ("moorage replay 7pNqL0M4T2c9K5s8Xw1aZe            # the id of a decision",),
    "story": ("moorage story shop", "moorage story 7pNqL0M4T2c9K5s8Xw1aZe   # the id of a message"),
    "diff": (
        "moorage diff shop                        # what was changed for each cluster",
        "moorage diff -f shop.yaml                # what applying the file would change",
    ),
    "explain": (
        "moorage explain application",
        "moorage explain application.spec.apps.consumers.needs",
        "moorage explain fleet --recursive",
        "moorage explain class nvidia.high.mem    # which devices it selects",
        "moorage explain class -f class.yaml --cluster lab/edge-1",
    ),
    "events": (
        "moorage events -f",
        "moorage events --subject 'moorage.events.decisions.>' --limit 20",
        "moorage events -f -o json",
    ),
    "subjects": ("moorage subjects", "moorage subjects -o json"),
    "check": ("moorage check", "moorage check -o json"),
    "version": ("moorage version",),
    "logs": ("moorage logs", "moorage logs merger -f", "moorage logs --since 10m -o json"),
    "apply": (
        "moorage apply -f shop.yaml",
        "moorage apply -f manifests/ --wait --timeout 2m",
        "moorage apply -f shop.yaml --dry-run",
        "moorage apply -f deploy.yaml -v values.yaml",
    ),
    "delete": (
        "moorage delete application shop",
        "moorage delete -f shop.yaml",
        "moorage delete application shop --no-wait",
        "moorage delete cluster lab/edge-1 --abandon-claims",
    ),
    "simulate": ("moorage simulate -f shop.yaml", "moorage simulate -f shop.yaml -o json"),
    "wait": (
        "moorage wait shop --for phase=Running --timeout 2m",
        "moorage wait shop --for delete",
    ),
    "approve": ("moorage approve shop",),
    "instantiate": ("moorage instantiate shop",),
    "update": ("moorage update shop",),
    "migrate": ("moorage migrate telco/core/v1/group-1 --to telco/core/v2/group-1",),
    "rollback": ("moorage rollback shop", "moorage rollback shop --revision 3"),
    "stop": ("moorage stop shop", "moorage instantiate shop                 # resumes it"),
    "terminate": ("moorage terminate shop",),
    "cluster": ("moorage cluster", "moorage cluster drain lab/edge-1", "moorage cluster join --context edge-1"),
    "cluster join": (
        "moorage cluster join --context edge-1",
        "moorage cluster join lab/edge-1 --kubeconfig edge-1.kubeconfig",
        "moorage cluster join lab/edge-1 --context edge-1 --machines",
    ),
    "cluster leave": ("moorage cluster leave lab/edge-1",),
    "cluster cordon": ("moorage cluster cordon lab/edge-1",),
    "cluster uncordon": ("moorage cluster uncordon lab/edge-1",),
    "cluster drain": (
        "moorage cluster drain lab/edge-1",
        "moorage cluster drain lab/edge-1 --dry-run   # only show what moves",
        "moorage cluster drain lab/edge-1 --timeout 10m --yes",
    ),
    "cluster get": ("moorage cluster get", "moorage cluster get lab/edge-1 -o json"),
    "cluster list": ("moorage cluster list",),
    "cluster describe": ("moorage cluster describe lab/edge-1",),
    "controllers": ("moorage controllers", "moorage controllers set hpa --deadline 300ms"),
    "controllers set": (
        "moorage controllers set hpa --deadline 300ms --policy required",
        "moorage controllers set my-controller --policy optional --weight 2",
        "moorage controllers set my-controller --remove",
    ),
    "controllers get": ("moorage controllers get hpa -o json",),
    "controllers list": ("moorage controllers list",),
    "devices": ("moorage devices replay --nodes nodes.csv --tasks tasks.csv",),
    "devices algorithm": ("moorage devices algorithm", "moorage devices algorithm best-fit"),
    "devices move": ("moorage devices move lab/one", "moorage devices move lab/one --kind nvidia-gpu"),
    "devices replay": (
        "moorage devices replay --nodes nodes.csv --tasks tasks.csv --algorithm default first-fit fgd",
        "moorage devices replay --nodes nodes.csv --tasks tasks.csv --placements placements.csv -o json",
    ),
    "fleet": ("moorage fleet", "moorage fleet apply fleet.yaml", "moorage fleet sim --clusters 100"),
    "fleet get": ("moorage fleet get",),
    "fleet list": ("moorage fleet list",),
    "fleet apply": (
        "moorage fleet apply fleet.yaml",
        "moorage fleet apply fleet.yaml --dry-run     # only show what changes",
        "moorage fleet apply fleet.yaml --yes         # also where groups run on clusters that go",
    ),
    "fleet fault": ("moorage fleet fault lab/edge-1 silent --for 10s",),
    "fleet sim": (
        "moorage fleet sim fleet.yaml",
        "moorage fleet sim --clusters 1000 --nodes 20 --seed 1",
    ),
    "token": ("moorage token create ci --role editor --project web --expires 720h", "moorage token list"),
    "token create": (
        "moorage token create ci --role editor --project web --expires 720h",
        "export MOORAGE_TOKEN=$(moorage token create me)",
    ),
    "token list": ("moorage token list",),
    "token revoke": ("moorage token revoke ci",),
    "up": (
        "moorage up --example",
        "moorage up --fleet fleet.yaml --detach",
        "moorage up --state ./state --http 127.0.0.1:8080 --workers merger=4",
    ),
    "down": ("moorage down",),
    "run": ("moorage run only_eu.py                   # your own controller", "moorage run merger"),
    "agent": ("moorage agent --name lab/edge-1 --context edge-1",),
    "machines": ("moorage machines --kubeconfig edge-1.kubeconfig --listen 192.0.2.7:8443",),
    "node": (
        "moorage node allocations                 # what containers have",
        "moorage node why default/shop-0          # why a pod was refused",
    ),
    "node run": (
        "moorage node run --node n1 --config policy.yaml --feature-gates QoSResourceManager=true",
        "moorage node run --node n1 --attach nri --kubeconfig /etc/moorage/kubeconfig",
        "moorage node run --node n1 --attach alone --pods /etc/moorage/pods",
    ),
    "node plugin": ("moorage node plugin cpu --config policy.yaml",),
    "node allocations": ("moorage node allocations", "moorage node allocations default/shop-0 -o json"),
    "node pools": ("moorage node pools",),
    "node pools set": ("moorage node pools set online=0-13,40-53 offline=14-39,54-79",),
    "node zones": ("moorage node zones",),
    "node plugins": ("moorage node plugins -o wide",),
    "node status": ("moorage node status",),
    "node why": ("moorage node why default/shop-0", "moorage node why default/shop-0 -o json"),
    "node simulate": ("moorage node simulate -f pods.yaml",),
    "node check": ("moorage node check",),
    "node detach": ("moorage node detach                      # before the agent is removed from a node",),
    "node reset": ("moorage node reset",),
    "node join": ("moorage node join lab/edge-1/node-7 --credentials node-7.json",),
    "node leave": ("moorage node leave lab/edge-1/node-7",),
    "backup": ("moorage backup mesh.backup",),
    "restore": ("moorage restore mesh.backup",),
    "bus": ("moorage bus config ./nats lab/edge-1", "moorage bus provision"),
    "bus config": ("moorage bus config ./nats lab/edge-1 lab/edge-2 --redis redis.example.com:6379",),
    "bus provision": ("moorage bus provision",),
    "completion": (
        "source <(moorage completion bash)",
        "moorage completion zsh > ~/.zfunc/_moorage",
        "moorage completion fish > ~/.config/fish/completions/moorage.fish",
    ),
}


def examples_text(argv: Sequence[str]) -> str:
    """Returns the examples of the command that these arguments name, as the end of its help."""
    words: list[str] = []
    for word in argv:
        if word.startswith("-") or " ".join((*words, word)) not in EXAMPLES:
            break
        words.append(word)
    lines = EXAMPLES[" ".join(words)]
    more = () if words else ("", "`moorage COMMAND --help` shows the options and examples of a command.")
    return "\n".join(("", "Examples:", *(f"  {line}" for line in lines), *more))

from moorage.sdk import allow, controller


@controller("only-eu", deadline=0.2)
async def only_eu(ask, fleet):
    eu = fleet.clusters.where(label={"region": "eu"})
    return {app.name: allow(eu) for app in ask.apps}

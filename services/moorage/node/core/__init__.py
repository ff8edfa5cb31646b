"""Decides for the node agent beside admission (`moorage.qos`): checkpoints, adjustment of running containers, pools."""

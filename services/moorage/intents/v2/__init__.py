"""The resources of `/v2`: read in any spelling clients use, stored one by one, composed into the group's one document."""

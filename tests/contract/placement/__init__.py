"""The API tests that openstack-placement ships, against the worker `placement`."""

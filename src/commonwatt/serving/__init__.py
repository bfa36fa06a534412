"""A model server for tenants over the Open Inference Protocol v2, with a timeslicing scheduler behind it."""

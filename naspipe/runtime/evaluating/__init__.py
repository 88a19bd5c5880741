"""One stage of a pipeline that judges subnets with weights that a run left; first weights' proxies."""

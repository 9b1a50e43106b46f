"""Secure aggregation: a server that learns the sum of its clients' inputs and no single one of them.

The protocol of Bonawitz et al. (2017), on the sparse graph of Bell et al. (2020) where a cohort is large. Against a
server that is curious but follows the protocol. Nothing here knows of engines: four messages up and three down.
"""

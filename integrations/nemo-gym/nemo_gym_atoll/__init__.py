"""Atoll sandboxes for NeMo Gym, which finds this package by its entry point."""

from nemo_gym_atoll.provider import AtollProvider

__all__ = ["AtollProvider"]

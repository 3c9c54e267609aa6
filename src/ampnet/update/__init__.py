"""When and how a node updates itself."""

from ampnet.update.policy import Update
from ampnet.update.updater import Applied, Updater

__all__ = ["Applied", "Update", "Updater"]

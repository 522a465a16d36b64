from pathlib import Path

from switchgear.core.model.files import ModelFiles, local_files
from switchgear.core.model.tokenizer import Tokenizer
from switchgear.core.model.vocabulary import read_vocabulary

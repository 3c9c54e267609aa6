"""Random models: programs of nested combinators, as `ampnet.testing.strategies` has them of nodes.

A *program* is a list of blocks, each applied to one row of `WIDTH` numbers. A block is the name of a row-wise function,
or a tuple of a name, settings and inner programs:

    "linear" "other" "norm" "sequence" "prelu" "own" "bilinear"    modules, each shared by all blocks that use it
    "twin" "scores" "shared"                                       modules with the weights of "linear", "few", "other"
    "rnn" "best"                                                   an RNNCell; scores and an index, of one module
    "frozen" "partly" "known"                                      modules with parameters that are not trained
    "few" "many"                                                   embeddings with few and with many rows
    "scale" "shift" "beside"                                       bare parameters
    "tanh" "relu" "sigmoid" "softmax" "centred" "cumsum" "roll"    functions of the row
    "outer" "first" "given" "detach"                               the row that the program started with, that of the
                                                                   instance, that of the element; no gradient
    ("loss", kind, weight)                                         a loss where the program is
    ("select",)                                                    a loss: which of the tokens
    ("residual", program) ("gate", program)                        added to the row; multiplied with it
    ("option", index)                                              one of several Linear layers
    ("choose", index, programs) ("pair", index, programs)          one of several programs; of one or two results
    ("judge", index, kinds)                                        one of several losses, or none
    ("repeat", count, cell, program) ("while", program)            rounds: a fixed number, an integer, until it is 0
    ("fold", space, cell, program)                                 over the elements of a space
    ("scan", space, cell, program, then, how)                      the same, and what every round gave, reduced
    ("stack", space, cell, cell, how)                              a scan of the rounds of a scan
    ("each", space, program, how) ("column", space, how)           for every element, reduced
    ("attend", space, how)                                         softmax over the elements, with a query from outside
    ("tree", reads, source, leaf, branch, use)                     binary trees, which read children in many ways
    ("bush", cell, leaf, branch, how, use)                         trees with any number of children, reduced
    ("graph", along, cell, step, rounds, how)                      messages along edges, then a step at every node
    ("nested", cell, program, how)                                 for every word, over its letters
    ("index", space, index, program)                               one element of a family
    ("lookup", space, space, program, how)                         for every element, one of another space
    ("spell", index, how)                                          one letter of every word
    ("look", space, heads)                                         attention, with a query from outside
    ("mix", space, causal, program, how)                           attention of all elements to all
    ("whole", space, module, program, how)                         a module of sequences, taken whole (`MODULES`)

A ``space`` is "tokens", "words", "tree", "bush", "bonds" or, inside of a word, its "letters". A ``cell`` says what one
round does with the value that is carried along (`CELLS`), ``reads`` what a branch does with its two children (`READS`),
``source`` what a leaf starts with, ``use`` which results of a tree are used, ``how`` is a reduction. All are listed in
`OPTIONS_OF`. ``index`` and ``count`` pick one of the integers at hand: those of the instance, of the elements that the
program is inside of, and of the rounds. Where a block would go through a space that the program is inside of already,
it does nothing.

Called with real tensors, the model runs in plain torch and is its own oracle. There is no dropout: its masks depend on
the state of a message, which plain torch does not have.

    WrittenModel(program)                      the model, in float64
    example()                                  an instance to compile it with
    seeded(seed)                               a program and 1 to 6 instances, a function of the seed
    written_programs(), written_instances()    the same for Hypothesis
"""

from ampnet.testing.written.cells import CELLS
from ampnet.testing.written.children import READS
from ampnet.testing.written.grammar import BLOCKS, OPTIONS_OF, seeded, settings_in
from ampnet.testing.written.instances import OPTIONS, WIDTH, example
from ampnet.testing.written.model import Block, Program, WrittenModel
from ampnet.testing.written.rows import ROWS
from ampnet.testing.written.strategies import written_instances, written_programs

__all__ = [
    "BLOCKS",
    "CELLS",
    "OPTIONS",
    "OPTIONS_OF",
    "READS",
    "ROWS",
    "WIDTH",
    "Block",
    "Program",
    "WrittenModel",
    "example",
    "seeded",
    "settings_in",
    "written_instances",
    "written_programs",
]

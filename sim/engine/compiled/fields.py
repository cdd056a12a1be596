"""Where each number of a compiled run stands.

All state is one block of 8-byte cells, which compiled functions see as integers ``i``, as floats
``f``, and as half cells ``h`` of 32 bits. It begins with a header, whose cells hold counters and
where each table begins. A table has rows of equal width; what a row's cells are is said below. An
``f`` stands behind those that are floats; tables of half cells are marked, and their beginning is
counted in half cells. So a function takes three pointers instead of forty arrays, and what it
needs of a segment lies in half a cache line.
"""

from __future__ import annotations

# Header: what changes
NOW = 0  # f, seconds
UNSETTLED = 1  # something is to be shared anew before time goes on
EVENTS = 2  # in the queue
ENDED = 3  # ops
DIRTY = 4  # GPUs whose state changed at this instant
TOUCHED = 5  # links whose flows changed at this instant
STAMP = 6  # counts the times that links were shared anew
SLOWED, FLOWS, SHARED, SETTLED = 7, 8, 9, 10  # see sim.engine.run.Stats

# Header: what stays
GPU_SMS = 11
CONTENTION = 12  # f
LATE, MOVES, ENDS, TAILS, LAGS = 13, 14, 15, 16, 17  # first event of each kind, see EVENT KINDS
NO_LAGS = 18  # no wait has a lag
GROUP_LINKS = 19  # links of the group of flows that is looked at
STEP = 29  # turns from op to op

# Header: where each table begins
HEAP, PLACES = 20, 21
SEGMENTS, POSITIONS, FACTORS, BOUNDS = 22, 23, 24, 25  # positions in half cells
WAITERS, WAITER_LAGS, LAG = 26, 27, 28  # waiters in half cells
QUEUES, GPUS, WORKS = 30, 31, 32
PARTS, ROWS, MEMBERS = 33, 34, 35
MOVING, FLOW, NODES = 36, 37, 38
LINKS, LOADS = 39, 40
DIRTY_LIST, TOUCHED_LIST, FRONTIER, GROUP = 41, 42, 43, 44
# Scratch: the problem of sim.machine.network.fair_rates, and partial sums (f)
STARTS, ENTRIES, COEFFICIENTS, ALIVE, SPEEDS = 45, 46, 47, 48, 49
ROOM, USED, LEVEL, FLOOR, PARTIALS = 50, 51, 52, 53, 54
TAIL = 55
HEADER = 56

# EVENT KINDS: events are numbered, and each number stands in the queue at most once:
#   the end of what runs on a queue: the number of the queue;
#   from LATE, a segment whose lag after its queue's last one is over: + the queue;
#   from MOVES, ENDS: a part's data begins to move, a part ends: + its place (PART_PLACE);
#   from TAILS: a member ends behind its part: + its row of MEMBERS;
#   from LAGS: the lag of a wait is over: + its row of WAITERS.

# HEAP: the queue of events, a binary heap by time, then by turn
TIME, TURN, EVENT, HEAP_WIDTH = 0, 1, 2, 4
# PLACES: of each event: its row of HEAP, -1 if it is not there

# SEGMENTS, half cells, one row more than there are
SLOT = 0  # of BOUNDS: its start; its ends follow
LAST_OP = 1  # which gives its turn
NEEDS = 2
FIRST_WAITER = 3
FIRST_ROW = 4  # of ROWS: its parts
QUEUE = 5
LEFT_PARTS = 6  # that have not ended; -1: the segment has ended
HOW = 7  # how + 4 * (leads its queue) + 8 * (may slow kernels beside it) + 16 * SMs that it holds
SEGMENT_WIDTH = 8
HEADS, BESIDE, SMS_SHIFT = 4, 8, 4

# QUEUES
RUNNING = 0  # its segment, while that is a chain of kernels on a shared GPU
CURRENT = 1  # the segment that runs, or that starts when its lag is over
AT = 2  # position of the kernel that the next two speak of
LEFT = 3  # f, share of that kernel still to run
SINCE = 4  # f
SHARE_X, SHARE_Y = 5, 6  # f, of SMs and memory bandwidth, under which its ends were computed
GPU = 7
QUEUE_WIDTH = 8

# GPUS, one row more than there are
SMS = 0  # held by communication
HBM = 1  # f, share of memory bandwidth that communication takes
CHAINS = 2  # how many run
IS_DIRTY = 3
FIRST_QUEUE = 4
FIRST_MOVING = 5  # of MOVING
GPU_WIDTH = 8

# WORKS, one row more than there are
ARITHMETIC, MEMORY, FIXED, REST, ALONE = 0, 1, 2, 3, 4  # f; rest: latency and transfer
LATENCY, TRANSFER, SPEED, WORK_HBM, SIZE = 5, 6, 7, 8, 9  # f
FIRST_LOAD = 10  # of LOADS
ON_LINKS = 11
WORK_WIDTH = 12
# LOADS: what a work puts on links
LOAD_LINK, COEFFICIENT, LOAD_WIDTH = 0, 1, 2

# PARTS, half cells, one row more than there are
WORK = 0
MISSING = 1  # members that have not started
FIRST_MEMBER = 2
FIRST_OP, AMONG = 3, 4  # its turn, when it moves: STEP * first op + among; one more when it ends
PART_PLACE = 5  # its row of FLOW: its own as long as its first member runs
FIRST_NODE = 6
USES_HBM = 7
PART_WIDTH = 8
# ROWS, half cells: the part of each membership, by segment
# MEMBERS, half cells: the segment of each membership, by part
# TAIL, f: the tail of each membership, by part, if any has one
# MOVING: parts that take memory bandwidth of a GPU
MOVING_PART, MOVING_SHARE, MOVING_WIDTH = 0, 1, 2  # f: share; part -1: free

# FLOW: what moves on links
FLOW_PART = 0
FLOW_LEFT, FLOW_SPEED, FLOW_SINCE, FLOW_END = 1, 2, 3, 4  # f
FLOW_STAMP = 5
FLOW_WIDTH = 6
# NODES: a flow on a link, in a list for each link
AFTER, BEFORE, NODE_FLOW, NODE_LINK, NODE_WIDTH = 0, 1, 2, 3, 4
# LINKS
FIRST_ON = 0  # node; -1: nobody
CAPACITY = 1  # f
IS_TOUCHED = 2
LINK_STAMP = 3
LOCAL = 4  # its row among the links of a group of flows
LINK_WIDTH = 5

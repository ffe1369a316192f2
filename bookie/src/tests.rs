//! Whole bookies, spoken to over the wire.

mod batch;
mod collect;
mod cuts;
mod damage;
mod elsewhere;
mod fencing;
mod gate;
mod guarded;
mod hostile;
mod identity;
mod limbo;
mod load;
mod operations;
mod overlap;
mod polls;
mod priority;
mod real_disk;
mod rebuild;
mod relay;
mod restart;
mod space;
mod stall;
mod stalling;
mod support;
mod wipe;
mod wire;

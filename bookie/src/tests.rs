//! Whole bookies, spoken to over the wire.

mod collect;
mod damage;
mod fencing;
mod identity;
mod load;
mod real_disk;
mod restart;
mod space;
mod support;
mod wire;

mod crash;
mod probes;
mod release;
mod service;
mod settle;
mod worker;
mod world;

mod crash;
mod release;
mod service;
mod settle;
mod worker;
mod world;

mod client;
mod rotation;
mod server;
mod support;

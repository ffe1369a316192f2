use prost::Message;

use crate::error::{Error, ErrorKind};

const BOOKIE_ENDPOINT_ID: &str = "bookie";
const BOOKIE_PROTOCOL: &str = "bookie-rpc";

/// What a bookie's registration says: where it listens, and free properties.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BookieServiceInfo {
    /// The addresses it listens on, one for each protocol.
    pub endpoints: Vec<BookieEndpoint>,
    /// Free properties, in stored order.
    pub properties: Vec<(String, String)>,
}

/// One address of a bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookieEndpoint {
    /// Its name: `bookie` for the entry protocol.
    pub id: String,
    /// The port.
    pub port: u16,
    /// The advertised host.
    pub host: String,
    /// The protocol: `bookie-rpc` for the entry protocol.
    pub protocol: String,
    /// Authentication methods.
    pub auth: Vec<String>,
    /// Extensions, such as `tls`.
    pub extensions: Vec<String>,
}

impl BookieEndpoint {
    /// `host:port`, an IPv6 host in brackets.
    pub fn address(&self) -> String {
        let (host, port) = (self.host.as_str(), self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl BookieServiceInfo {
    /// The registration of a bookie that serves the entry protocol at one address.
    pub fn of_bookie(host: &str, port: u16) -> Self {
        let endpoint = BookieEndpoint {
            id: BOOKIE_ENDPOINT_ID.to_owned(),
            port,
            host: host.to_owned(),
            protocol: BOOKIE_PROTOCOL.to_owned(),
            auth: Vec::new(),
            extensions: Vec::new(),
        };
        Self { endpoints: vec![endpoint], properties: Vec::new() }
    }

    /// Where the entry protocol is spoken. `None`: whoever registered this cannot be reached by it.
    pub fn bookie_endpoint(&self) -> Option<&BookieEndpoint> {
        self.endpoints.iter().find(|e| e.protocol == BOOKIE_PROTOCOL)
    }

    /// `host:port` of the entry protocol. `None`: whoever registered this cannot be reached by it.
    pub fn bookie_address(&self) -> Option<String> {
        self.bookie_endpoint().map(BookieEndpoint::address)
    }

    /// A property by name.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The registration value: protobuf, undelimited.
    pub fn encode(&self) -> Vec<u8> {
        let endpoints = self.endpoints.iter().map(|e| EndpointFormat {
            id: Some(e.id.clone()),
            port: Some(i32::from(e.port)),
            host: Some(e.host.clone()),
            protocol: Some(e.protocol.clone()),
            auth: e.auth.clone(),
            extensions: e.extensions.clone(),
        });
        let properties =
            self.properties.iter().map(|(k, v)| PropertyFormat { key: Some(k.clone()), value: Some(v.clone()) });
        ServiceInfoFormat { endpoints: endpoints.collect(), properties: properties.collect() }.encode_to_vec()
    }

    /// Reads a registration value. An empty value has no endpoints: its owner is to be found under its id.
    ///
    /// # Errors
    /// When the bytes are malformed, an endpoint lacks a required field or its port is out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let format = ServiceInfoFormat::decode(bytes).map_err(|e| refuse(format!("malformed protobuf: {e}")))?;
        let endpoints = format.endpoints.into_iter().map(endpoint).collect::<Result<_, _>>()?;
        let properties =
            format.properties.into_iter().map(|p| (p.key.unwrap_or_default(), p.value.unwrap_or_default())).collect();
        Ok(Self { endpoints, properties })
    }
}

fn endpoint(format: EndpointFormat) -> Result<BookieEndpoint, Error> {
    let missing = |field| refuse(format!("an endpoint has no {field}"));
    let port = format.port.ok_or_else(|| missing("port"))?;
    Ok(BookieEndpoint {
        id: format.id.ok_or_else(|| missing("id"))?,
        port: u16::try_from(port).map_err(|_| refuse(format!("port {port} is out of range")))?,
        host: format.host.ok_or_else(|| missing("host"))?,
        protocol: format.protocol.ok_or_else(|| missing("protocol"))?,
        auth: format.auth,
        extensions: format.extensions,
    })
}

fn refuse(why: String) -> Error {
    Error::new(ErrorKind::ServiceInfo, format!("read bookie registration: {why}"))
}

#[derive(Clone, PartialEq, Message)]
struct ServiceInfoFormat {
    #[prost(message, repeated, tag = "6")]
    endpoints: Vec<EndpointFormat>,
    #[prost(message, repeated, tag = "7")]
    properties: Vec<PropertyFormat>,
}

#[derive(Clone, PartialEq, Message)]
struct EndpointFormat {
    #[prost(string, optional, tag = "1")]
    id: Option<String>,
    #[prost(int32, optional, tag = "2")]
    port: Option<i32>,
    #[prost(string, optional, tag = "3")]
    host: Option<String>,
    #[prost(string, optional, tag = "4")]
    protocol: Option<String>,
    #[prost(string, repeated, tag = "5")]
    auth: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    extensions: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct PropertyFormat {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

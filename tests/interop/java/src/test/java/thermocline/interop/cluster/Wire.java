package thermocline.interop.cluster;

/** The version of the wire protocol that a client prefers. */
public enum Wire {
    /** The binary one, which Pulsar uses. */
    V2,
    /** Protocol buffers, the default. */
    V3
}

package thermocline.interop.cluster;

import java.nio.file.Path;
import java.util.List;

/** A process of {@code thermocline gateway}: it reads ledgers of either tier, and serves the cold ids of its shards. */
public final class Gateway extends Role {
    private final int port;

    /** Starts one whose BookKeeper front is at {@code port} of loopback. */
    Gateway(Path dir, int port, String metadata, String cold) throws Exception {
        super(dir, List.of("gateway", "--metadata", metadata, "--cold", cold, "--listen", "127.0.0.1:0", "--admin", "off",
            "--set", "bookkeeper_listen=127.0.0.1:" + port));
        this.port = port;
    }

    /** The port that the cold ids of its shards are registered with. */
    public int port() {
        return port;
    }
}

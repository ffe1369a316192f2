package thermocline.interop.cluster;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/** A ZooKeeper of one server in this process, on a free port of loopback, and a session of our own with it. */
final class Zoo implements AutoCloseable {
    private static final int TICK_MS = 500;
    /** As with ZooKeeper's default tick: offloaders own what they work on for longer than twenty short ticks. */
    private static final int SESSION_MS_MAX = 40_000;
    private static final int CONNECTIONS_MAX = 1000;
    private static final Duration CONNECT = Duration.ofSeconds(20);

    private final NIOServerCnxnFactory front;
    private final ZooKeeper session;

    Zoo(Path dir) throws Exception {
        File data = Files.createDirectories(dir).toFile();
        ZooKeeperServer server = new ZooKeeperServer(data, data, TICK_MS);
        server.setMaxSessionTimeout(SESSION_MS_MAX);
        front = new NIOServerCnxnFactory();
        front.configure(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), CONNECTIONS_MAX);
        front.startup(server);
        session = connect();
    }

    /** {@code host:port}, as in a metadata URI. */
    String address() {
        return "127.0.0.1:" + front.getLocalPort();
    }

    boolean exists(String path) throws InterruptedException {
        try {
            return session.exists(path, false) != null;
        } catch (KeeperException e) {
            return false;
        }
    }

    private ZooKeeper connect() throws IOException, InterruptedException {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper(address(), (int) CONNECT.toMillis(), event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        if (!connected.await(CONNECT.toMillis(), TimeUnit.MILLISECONDS)) {
            throw new IOException("ZooKeeper does not answer at " + address());
        }
        return client;
    }

    @Override
    public void close() throws InterruptedException {
        session.close();
        front.shutdown();
    }
}

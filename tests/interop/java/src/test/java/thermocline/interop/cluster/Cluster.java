package thermocline.interop.cluster;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;

/** A ZooKeeper and some bookies, of the kind that the property {@code bookies} names, on loopback. */
public final class Cluster implements AutoCloseable {
    static final String ROOT = "/ledgers";

    private final Path dir;
    private final Zoo zoo;
    private final List<Bookie> bookies = new ArrayList<>();
    /** At most two; one that a test has closed leaves its place. */
    private final List<Gateway> gateways = new ArrayList<>();
    private Offloader offloader;

    /** Starts {@code count} bookies at once and waits until each is registered. */
    public Cluster(int count) throws Exception {
        this(count, System.getProperty("bookies"));
    }

    /**
     * As above, with bookies of this kind, {@code thermocline} or {@code apache}, and these settings of theirs, {@code name=value}.
     */
    public Cluster(int count, String kind, String... settings) throws Exception {
        Path parent = Files.createDirectories(Path.of(System.getProperty("data.dir")));
        dir = Files.createTempDirectory(parent, "cluster-");
        zoo = new Zoo(dir.resolve("zookeeper"));
        try {
            ServerConfiguration configuration = new ServerConfiguration();
            configuration.setMetadataServiceUri(uri(zoo));
            if (!BookKeeperAdmin.initNewCluster(configuration)) {
                throw new IllegalStateException("the new ZooKeeper has a cluster already");
            }
            for (int port : freePorts(count)) {
                Bookie bookie = bookie(port, kind, List.of(settings));
                bookies.add(bookie);
                bookie.launch();
            }
            for (Bookie bookie : bookies) {
                bookie.awaitReady();
            }
        } catch (Exception | AssertionError e) {
            close();
            throw e;
        }
    }

    private Bookie bookie(int port, String kind, List<String> settings) {
        Path home = dir.resolve("bookie-" + port);
        return switch (kind) {
            case "apache" -> new ApacheBookie(port, home, zoo, settings);
            case "thermocline" -> new ThermoclineBookie(port, home, zoo, settings);
            default -> throw new IllegalArgumentException("bookies=" + kind + ": use apache or thermocline");
        };
    }

    static String uri(Zoo zoo) {
        return "zk+hierarchical://" + zoo.address() + ROOT;
    }

    /** All bookies, whether they run or not. */
    public List<Bookie> bookies() {
        return List.copyOf(bookies);
    }

    /** The bookie that a ledger's ensemble names. */
    public Bookie bookie(BookieId id) {
        return bookies.stream().filter(bookie -> bookie.id().equals(id)).findFirst().orElseThrow();
    }

    /** What a client of this cluster is configured with; a test may change it before it connects. */
    public ClientConfiguration configuration(Wire wire) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri(zoo));
        configuration.setUseV2WireProtocol(wire == Wire.V2);
        return configuration;
    }

    /** A client; the caller closes it. */
    public BookKeeper connect(Wire wire) throws Exception {
        return new BookKeeper(configuration(wire));
    }

    /** Thermocline's gateway to this cluster, which runs from the first call on. */
    public Gateway gateway() throws Exception {
        return gateways(1).get(0);
    }

    /** So many gateways; those that do not run yet are started. */
    public List<Gateway> gateways(int count) throws Exception {
        while (gateways.size() < count) {
            Path home = Files.createTempDirectory(Files.createDirectories(dir.resolve("gateways")), "gateway-");
            gateways.add(new Gateway(home, freePorts(1).get(0), uri(zoo), cold()));
        }
        return List.copyOf(gateways);
    }

    /** Ends {@code gateway} as a crash would. The next call that asks for as many starts another. */
    public void kill(Gateway gateway) throws Exception {
        gateways.remove(gateway);
        gateway.close();
    }

    /** Thermocline's offloader of this cluster, which runs from the first call on and releases in one step. */
    public Offloader offloader() throws Exception {
        return offloader("0s");
    }

    /** The same; beside bookies that cannot relay, a release takes two steps with {@code handleGrace} between them. */
    public Offloader offloader(String handleGrace) throws Exception {
        if (offloader == null) {
            offloader = new Offloader(dir.resolve("offloader"), uri(zoo), cold(), handleGrace);
        }
        return offloader;
    }

    /** The object store: a folder that all roles reach. */
    private String cold() {
        return dir.resolve("cold").toUri().toString();
    }

    /** The metadata's URI, for what BookKeeper runs beside its client. */
    public String metadata() {
        return uri(zoo);
    }

    /** Brings back every bookie that a test left dead. */
    public void heal() throws Exception {
        for (Bookie bookie : bookies) {
            if (!bookie.isAlive()) {
                bookie.restart();
            }
        }
    }

    @Override
    public void close() throws Exception {
        if (offloader != null) {
            offloader.close();
        }
        for (Gateway gateway : gateways) {
            gateway.close();
        }
        for (Bookie bookie : bookies) {
            bookie.close();
        }
        zoo.close();
        if (!Boolean.getBoolean("keep.data")) {
            try (Stream<Path> files = Files.walk(dir)) {
                for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(file);
                }
            }
        }
    }

    /** Ports that were free a moment ago, none twice. */
    private static List<Integer> freePorts(int count) throws IOException {
        List<ServerSocket> sockets = new ArrayList<>();
        List<Integer> ports = new ArrayList<>();
        try {
            for (int i = 0; i < count; i++) {
                ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
                sockets.add(socket);
                ports.add(socket.getLocalPort());
            }
        } finally {
            for (ServerSocket socket : sockets) {
                socket.close();
            }
        }
        return ports;
    }
}

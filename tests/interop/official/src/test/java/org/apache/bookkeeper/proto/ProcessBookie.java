package org.apache.bookkeeper.proto;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.StateManager;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory;
import org.apache.bookkeeper.meta.LayoutManager;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.meta.ZkLayoutManager;
import org.apache.bookkeeper.meta.zk.ZKMetadataDriverBase;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/**
 * A bookie as a process of {@code thermocline bookie}: killed with SIGKILL where BookKeeper's would be shut down, stopped with
 * SIGSTOP where it would be suspended, and started again on the same directory.
 */
final class ProcessBookie implements BookieServer.Served {
    private static final long READY_MS = 30_000;
    private static final long PAUSE_MS = 20;
    private static final int SESSION_MS = 10_000;
    /** Longer than any test stops a process: a suspended bookie of BookKeeper's stays registered. */
    private static final String REGISTRATION = "50s";
    private static final Set<Process> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> RUNNING.forEach(Process::destroyForcibly)));
    }

    private final ServerConfiguration configuration;
    private final Path dir;
    private final Path log;
    private Process process;
    private boolean readOnly;
    private boolean suspended;

    ProcessBookie(ServerConfiguration configuration) {
        this.configuration = configuration;
        dir = Path.of(configuration.getJournalDirs()[0].getPath(), "thermocline");
        log = dir.resolveSibling("thermocline.log");
        readOnly = configuration.isForceReadOnlyBookie();
    }

    @Override
    public synchronized void start() throws IOException, InterruptedException {
        if (isRunning()) {
            return;
        }
        BookieServer.count("ours");
        record();
        Files.createDirectories(dir);
        Files.deleteIfExists(log);
        ProcessBuilder builder = new ProcessBuilder(command());
        builder.environment().keySet().removeIf(name -> name.startsWith("THERMOCLINE_"));
        process = builder.redirectErrorStream(true).redirectOutput(log.toFile()).start();
        RUNNING.add(process);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(READY_MS);
        while (!saidReady()) {
            if (!process.isAlive() || System.nanoTime() > deadline) {
                String said = Files.readString(log);
                kill();
                throw new IOException("the bookie has not started; its log is:\n" + said);
            }
            Thread.sleep(PAUSE_MS);
        }
    }

    private List<String> command() throws IOException {
        List<String> command = new ArrayList<>(List.of(
            System.getProperty("thermocline"), "bookie",
            "--id", BookieImpl.getBookieId(configuration).toString(),
            "--dir", dir.toString(),
            "--listen", address(),
            "--admin", "off",
            "--metadata", configuration.getMetadataServiceUriUnchecked(),
            "--set", "bookie.segment_bytes=16MiB",
            "--set", "bookie.frame_bytes_max=" + configuration.getNettyMaxFrameSizeBytes(),
            "--set", "bookie.collect_interval=" + configuration.getGcWaitTime() + "ms",
            "--set", "bookie.registration_ttl=" + REGISTRATION));
        if (readOnly) {
            // More than there is: it takes no entries but those of recovery and repair.
            long free = new File(dir.toString()).getUsableSpace();
            command.addAll(List.of("--set", "bookie.disk_free_bytes_min=" + (free + (1L << 30)),
                "--set", "bookie.priority_reserve_bytes=" + (4L << 30)));
        }
        return command;
    }

    private String address() throws IOException {
        return BookieImpl.getBookieAddress(configuration).getSocketAddress().getAddress().getHostAddress()
            + ":" + configuration.getBookiePort();
    }

    private boolean saidReady() throws IOException {
        return Files.readAllLines(log).stream().anyMatch(line -> line.startsWith("ready "));
    }

    @Override
    public void suspend() {
        signal("STOP");
        suspended = true;
    }

    @Override
    public void resume() {
        suspended = false;
        if (isRunning()) {
            signal("CONT");
        }
    }

    private void signal(String name) {
        try {
            int code = new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).inheritIO().start().waitFor();
            if (code != 0) {
                throw new IllegalStateException("SIG" + name + " was not sent: exit code " + code);
            }
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException("send SIG" + name, e);
        }
    }

    @Override
    public synchronized void shutdown() {
        try {
            if (process != null) {
                kill();
                unregister();
            }
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException("end " + this, e);
        }
    }

    private void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
        RUNNING.remove(process);
        process = null;
    }

    /** What is done in ZooKeeper, with the path of the cluster's root. */
    private interface Act {
        void in(ZooKeeper session, String root) throws IOException, InterruptedException;
    }

    /** BookKeeper's bookie takes its registration away when it is shut down; a killed process's stays until its session ends. */
    private void unregister() throws IOException, InterruptedException {
        String id = BookieImpl.getBookieId(configuration).toString();
        inZooKeeper((session, root) -> {
            for (String path : List.of("/available/", "/available/readonly/")) {
                delete(session, root + path + id);
            }
        });
    }

    /** What makes a tree in ZooKeeper a cluster, where a test has left that to BookKeeper's bookie or has none: its identity and layout. */
    private void record() throws IOException, InterruptedException {
        inZooKeeper((session, root) -> {
            try {
                session.create(root + "/INSTANCEID", UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8),
                    ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            } catch (KeeperException.NodeExistsException e) {
                // As it mostly is.
            } catch (KeeperException e) {
                throw new IOException("record the identity of " + root, e);
            }
            try {
                new ZkLayoutManager(session, root, ZooDefs.Ids.OPEN_ACL_UNSAFE).storeLedgerLayout(new LedgerLayout(
                    HierarchicalLedgerManagerFactory.class.getName(), HierarchicalLedgerManagerFactory.CUR_VERSION));
            } catch (LayoutManager.LedgerLayoutExistsException e) {
                // As it mostly is too.
            }
        });
    }

    private void inZooKeeper(Act act) throws IOException, InterruptedException {
        String uri = configuration.getMetadataServiceUriUnchecked();
        if (!uri.startsWith("zk")) {
            return;
        }
        String servers = uri.substring(uri.indexOf("://") + 3);
        String hosts = servers.substring(0, servers.indexOf('/')).replace(';', ',');
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper session = new ZooKeeper(hosts, SESSION_MS, event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        try {
            // Where ZooKeeper is away, so is all that is in it as far as anyone can see.
            if (connected.await(SESSION_MS, TimeUnit.MILLISECONDS)) {
                act.in(session, ZKMetadataDriverBase.resolveZkLedgersRootPath(configuration));
            }
        } finally {
            session.close();
        }
    }

    private static void delete(ZooKeeper session, String path) throws InterruptedException {
        try {
            session.delete(path, -1);
        } catch (KeeperException e) {
            // It was not registered there, or ZooKeeper has just gone away.
            return;
        }
    }

    @Override
    public boolean isRunning() {
        Process current = process;
        return current != null && current.isAlive();
    }

    /** Serves again, for entries or without, which costs a start of the process. */
    private synchronized void restart(boolean readOnly) throws IOException, InterruptedException {
        if (this.readOnly == readOnly) {
            return;
        }
        this.readOnly = readOnly;
        boolean wasSuspended = suspended;
        shutdown();
        start();
        if (wasSuspended) {
            suspend();
        }
    }

    @Override
    public Bookie bookie() {
        return face(Bookie.class, (proxy, method, arguments) -> switch (method.getName()) {
            case "isRunning" -> isRunning();
            case "isReadOnly" -> readOnly;
            case "isAvailableForHighPriorityWrites" -> true;
            case "getStateManager" -> state();
            case "shutdown" -> {
                shutdown();
                yield 0;
            }
            default -> throw internals(method);
        });
    }

    private StateManager state() {
        return face(StateManager.class, (proxy, method, arguments) -> switch (method.getName()) {
            case "isRunning" -> isRunning();
            case "isReadOnly" -> readOnly;
            case "isShuttingDown" -> !isRunning();
            case "isReadOnlyModeEnabled", "isAvailableForHighPriorityWrites" -> true;
            case "transitionToReadOnlyMode" -> {
                restart(true);
                yield CompletableFuture.completedFuture(null);
            }
            case "transitionToWritableMode" -> {
                restart(false);
                yield CompletableFuture.completedFuture(null);
            }
            default -> throw internals(method);
        });
    }

    private static <T> T face(Class<T> type, InvocationHandler answers) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, answers));
    }

    private static UnsupportedOperationException internals(Method method) {
        return new UnsupportedOperationException("a process has no " + method.getName() + " to look into");
    }

    @Override
    public BookieRequestProcessor processor() {
        throw new UnsupportedOperationException("a process has no BookieRequestProcessor to look into");
    }

    @Override
    public String toString() {
        return "the bookie at port " + configuration.getBookiePort();
    }
}

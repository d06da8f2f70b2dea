/* Starts a program under what container runtimes deny by default: those calls answer EPERM. Arguments: the program and its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const unsigned denied[] = {
    SYS_acct,          SYS_add_key,     SYS_bpf,          SYS_clock_adjtime, SYS_clock_settime,  SYS_delete_module, SYS_finit_module,
    SYS_get_mempolicy, SYS_init_module, SYS_kcmp,         SYS_kexec_load,    SYS_keyctl,         SYS_lookup_dcookie, SYS_mbind,
    SYS_mount,         SYS_move_pages,  SYS_nfsservctl,   SYS_open_by_handle_at, SYS_perf_event_open, SYS_personality, SYS_pivot_root,
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_quotactl,   SYS_reboot,         SYS_request_key,   SYS_set_mempolicy,
    SYS_setns,         SYS_settimeofday, SYS_swapon,      SYS_swapoff,       SYS_umount2,        SYS_unshare,       SYS_userfaultfd,
    SYS_vhangup,
};

enum { DENIED = sizeof(denied) / sizeof(denied[0]) };

int main(int argc, char **argv)
{
    struct sock_filter filter[2 * DENIED + 2];
    unsigned length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < DENIED; i++) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied[i], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)length, filter};
    if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        return 125;
    }
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
